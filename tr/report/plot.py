"""A plot as data: what is shown, apart from how. It lies beside each picture as NAME.plot.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SUFFIX = ".plot.json"
KINDS = ("bars", "lying_bars", "curves", "points", "spans")
SCALES = ("linear", "log", "doublings", "names")


@dataclass(frozen=True)
class Plot:
    """Points by series: [x, y], or [x, y, low, high] where a run has a spread, or, for spans,
    [name, from, to]. Bars and scales of names have words for x; lying bars measure along x, and
    there `x` labels the numbers.
    """

    kind: str
    title: str
    x: str  # the axes' labels, with units
    y: str
    series: Mapping[str, Sequence[Sequence[Any]]]
    note: str = ""  # device, commit, what is simulated
    digits: int = 2  # of the numbers that bars carry
    x_scale: str = "linear"
    y_scale: str = "linear"
    least: float | None = None  # where the number axis begins and ends
    most: float | None = None
    marks: Mapping[str, float] = field(default_factory=dict)  # lines across, by label

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"plot {self.title!r}: kind {self.kind!r}, expected one of {KINDS}")
        for scale in (self.x_scale, self.y_scale):
            if scale not in SCALES:
                raise ValueError(f"plot {self.title!r}: scale {scale!r}, expected one of {SCALES}")
        if not any(self.series.values()):
            raise ValueError(
                f"plot {self.title!r} has nothing to show: expected points of {self.y or self.x},"
                " got none; choose records that hold them"
            )


def rounded(value: Any) -> Any:
    """Six digits of a number: what is plotted, on every machine the same."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def text(plot: Plot) -> str:
    """JSON, a line per series."""
    values = asdict(plot)
    series = values.pop("series")
    head = json.dumps(values, indent=2, ensure_ascii=False)
    lines = (
        f"    {json.dumps(name, ensure_ascii=False)}:"
        f" {json.dumps([[rounded(v) for v in point] for point in points], ensure_ascii=False)}"
        for name, points in series.items()
    )
    return head[:-2] + ',\n  "series": {\n' + ",\n".join(lines) + "\n  }\n}\n"


def load(path: Path) -> Plot:
    """A plot from its data; raises ValueError naming the file."""
    try:
        return Plot(**json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(
            f"{path} is not a plot's data: expected the whole JSON of one, got {error};"
            " make it again from its records"
        ) from error
