"""What the written pages hold: README.md and docs/, without what is generated from records."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tr.report.machine import ROOT
from tr.report.readme import PAGE

RUN = "<!-- run -->"  # above a block whose commands a test runs
FENCE = re.compile(
    r"^(?P<mark><!-- run -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Command:
    """A line of a shell block, those that it goes on with behind a backslash included."""

    page: str
    line: int
    text: str
    language: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages(root: Path = ROOT) -> list[Path]:
    """All but the one that is generated from records."""
    found = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return [path for path in found if path != root / PAGE]


def commands(path: Path) -> Iterator[Command]:
    """Of bash blocks, which hold ours, and of sh blocks, which hold other programs'."""
    text = path.read_text(encoding="utf-8")
    for block in FENCE.finditer(text):
        if block["language"] not in ("bash", "sh"):
            continue
        line = text.count("\n", 0, block.start("body")) + 1
        whole = ""
        for row in block["body"].splitlines():
            whole += row.removesuffix("\\")
            if not row.endswith("\\") and whole.strip() and not whole.lstrip().startswith("#"):
                place = f"{path.relative_to(ROOT)}" if path.is_relative_to(ROOT) else path.name
                yield Command(place, line, whole, block["language"], bool(block["mark"]))
            whole = whole if row.endswith("\\") else ""
            line += 1


def prose(text: str) -> str:
    """`text` without its blocks of code."""
    return FENCE.sub("", text)
