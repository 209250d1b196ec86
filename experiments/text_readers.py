"""Readers for the text formats of documentation packages: bytes of one file -> list of paragraphs.

A paragraph is one line of text without hard wraps; code and tables are dropped. The one exception
is `code`, which keeps a source file as it stands.
"""

import gzip
import html.parser
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

Reader = Callable[[Path], list[str]]

BLOCKS = frozenset(
    "p li dd dt h1 h2 h3 h4 h5 h6 blockquote div title td th tr section br note item".split()
)
SKIPPED = frozenset(
    "script style nav header footer table pre svg head info aside button noscript select".split()
)
VOID = frozenset("br img hr meta link input col area base embed source track wbr".split())


def load(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def unwrap(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def joined_lines(text: str) -> str:
    """Undo hard wraps; Chinese lines join without a space, "co-\\nexist" stays "co-exist"."""
    text = re.sub(r"(?<=[\u3000-\uffef])[ \t]*\n[ \t]*(?=[\u3000-\uffef])", "", text.strip())
    return unwrap(re.sub(r"(?<=[a-z]-)\n(?=[a-z])", "", text))


class HtmlParagraphs(html.parser.HTMLParser):
    """Text of block elements; everything under a SKIPPED element is left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[str] = []
        self.parts: list[str] = []
        self.depth = 0

    def flush(self) -> None:
        text = unwrap("".join(self.parts)).replace("¶", "").strip()
        if text:
            self.paragraphs.append(text)
        self.parts = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SKIPPED:
            self.flush()
            self.depth += 1
        elif tag in BLOCKS:
            self.flush()

    def handle_endtag(self, tag: str) -> None:
        if tag in SKIPPED:
            self.depth = max(0, self.depth - 1)
        elif tag in BLOCKS:
            self.flush()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self.flush()

    def handle_data(self, data: str) -> None:
        if not self.depth:
            self.parts.append(data)


def html_page(path: Path) -> list[str]:
    text = load(path)
    body = re.search(r"<(body|page)\b", text)
    parser = HtmlParagraphs()
    parser.feed(text[body.start() :] if body else text)
    parser.flush()
    return parser.paragraphs


def plain(path: Path) -> list[str]:
    """Blank-line separated text; indented blocks (code, tables) are left to the prose filter."""
    text = re.sub("\x1b\\[[0-9;]*m", "", load(path)).replace("\r", "")
    blocks = re.split(r"\n[ \t]*\n", re.sub(r"[-=~*^#]{4,}", "", text))
    return [joined_lines(block) for block in blocks]


def markdown(path: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", load(path), flags=re.S)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(\*\*|__)\s?(.+?)\s?\1", r"\2", text)
    text = re.sub(r"(?<!\w)_(.+?)_(?!\w)", r"\1", text, flags=re.S).replace("\\", "")
    blocks = re.split(r"\n\s*\n|\n(?=\s*[*+-] )|\n(?=#)", text)
    return [joined_lines(re.sub(r"^\s*(#+|[*+>-]|\d+\.) ", "", b)) for b in blocks]


def rst(path: Path) -> list[str]:
    """reStructuredText without directives, literal blocks and inline markup."""
    out = []
    skip = False
    for block in re.split(r"\n\s*\n", load(path)):
        indented = block.startswith((" ", "\t"))
        if skip and indented:
            continue
        skip = block.rstrip().endswith("::")
        if block.startswith("..") or indented:
            skip = skip or block.startswith("..")
            continue
        block = re.sub(r"``(.+?)``", r"\1", block, flags=re.S)
        block = re.sub(r":[\w:+-]+:`~?!?([^`<]*?)(?:\s*<[^`]*>)?`", r"\1", block)
        block = re.sub(r"`([^`<]*?)(?:\s*<[^`]*>)?`_+", r"\1", block)
        block = re.sub(r"`([^`]*)`", r"\1", block)
        block = re.sub(r"(?<![\w*])\*\*?([^*\s][^*\n]*)\*\*?", r"\1", block)
        block = re.sub(r"^[-=~*^#\"'.+]{3,}$", "", block, flags=re.M)
        out.append(joined_lines(re.sub(r"::\s*$", ":", block)))
    return out


def pod(path: Path) -> list[str]:
    out = []
    for block in re.split(r"\n\s*\n", load(path)):
        if block.startswith(("=head", "=item")):
            out.append(strip_pod(block.split(None, 1)[1] if " " in block else ""))
        elif block[:1] not in (" ", "\t", "="):
            out.append(strip_pod(block))
    return out


def strip_pod(text: str) -> str:
    text = re.sub(r"L<(?:[^<>|]*\|)?([^<>]*)>", r"\1", text)
    for _ in range(3):
        text = re.sub(r"[BCIFSEXZ]<+ ?([^<>]*?) ?>+", r"\1", text)
    return joined_lines(text)


def man(path: Path) -> list[str]:
    """A manual page without roff requests; .nf blocks (examples) are dropped."""
    out: list[str] = []
    lines: list[str] = []
    verbatim = False
    for line in load(path).splitlines():
        if line.startswith(("'", ".")):
            request, _, rest = line[1:].strip().partition(" ")
            verbatim = request in ("nf", "EX", "Vb") or (verbatim and request not in EX_END)
            if request in ("B", "I", "BR", "IR", "RB", "BI", "IB", "RI", "SM", "Nm", "Xr", "Fl"):
                lines.append(rest.replace('" "', " ").replace('"', ""))
            elif request not in ('\\"', "ft", "ad", "hy", "nh", "in", "UR", "UE", "ne", "nop"):
                out.append(strip_roff(lines))
                lines = []
        elif not verbatim:
            lines.append(line)
    return [*out, strip_roff(lines)]


EX_END = ("fi", "EE", "Ve")


def strip_roff(lines: list[str]) -> str:
    text = joined_lines("\n".join(lines))
    text = re.sub(r"\\f(\[\w*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,cp:%]|\\\*\(?\w+", "", text)
    for old, new in ROFF.items():
        text = text.replace(old, new)
    return re.sub(r"\\(\(..|\[[^\]]*\]|.)", "", text).strip()


ROFF = {
    "\\-": "-", "\\(aq": "'", "\\(lq": '"', "\\(rq": '"', "\\(dq": '"', "\\(em": " - ",
    "\\(en": "-", "\\e": "\\", "\\ ": " ", "\\~": " ", "\\(bu": "", "\\(cq": "'", "\\(oq": "'",
}  # fmt: skip


def r_strings(path: Path) -> list[str]:
    """Character vectors of an R lazy-load database, as wrapped text with blank-line paragraphs."""
    data, out, pos = path.read_bytes(), [], 0
    while (pos := data.find(b"x\x9c", pos)) >= 0:
        try:
            block = zlib.decompressobj().decompress(data[pos:])
        except zlib.error:
            pos += 1
            continue
        strings = re.findall(rb"\0\x04\0\t\0\0(..)((?:(?!\0\x04\0\t\0\0).)*)", block, flags=re.S)
        lines = [s[: int.from_bytes(n, "big")].decode("latin-1") for n, s in strings]
        out += [joined_lines(b) for b in re.split(r"\n\s*\n", "\n".join(lines))]
        pos += 2
    return [re.sub(r"_(\w[^_]*)_", r"\1", p) for p in out]


def backticks(path: Path) -> list[str]:
    """Conversations and descriptions of Endless Sky: one back-ticked or quoted line each."""
    found = re.findall(r"^\s*(?:\w+ )?`([^`]+)`|^\s*description \"([^\"]+)\"", load(path), re.M)
    return [unwrap(re.sub(r"<[^>]*>", "it", a or b)) for a, b in found]


def wml(path: Path) -> list[str]:
    """Translatable strings of a Battle for Wesnoth file."""
    found = re.findall(r'=\s*_ ?"((?:[^"]|"")*)"', load(path))
    return [unwrap(re.sub(r"<[^>]*>", "", s.replace('""', '"'))) for s in found]


def json_texts(path: Path) -> list[str]:
    def walk(x: object, key: str) -> Iterator[str]:
        if isinstance(x, dict):
            for k, v in x.items():
                yield from walk(v, k if k not in ("str", "text") else (key or k))
        elif isinstance(x, list):
            for v in x:
                yield from walk(v, key)
        elif isinstance(x, str) and key in TEXT_KEYS:
            yield from (unwrap(re.sub(r"<[^>]*>", "it", s)) for s in x.split("\n"))

    return list(walk(json.loads(load(path)), ""))


TEXT_KEYS = frozenset("description text dynamic_line desc sound message snippet".split())


def records(path: Path) -> list[str]:
    """Fortune cookies (%) and Crawl descriptions (%%%%), blank lines splitting paragraphs."""
    text = re.sub("\x1b\\[[0-9;]*m", "", load(path))
    text = re.sub(r"^#.*$|^\{\{.*?^\}\}|<[^>]*>|^:.*$", "", text, flags=re.M | re.S)
    return [joined_lines(b) for b in re.split(r"\n%+\n|\n\s*\n", text)]


def code(path: Path) -> list[str]:
    text = load(path).replace("\r\n", "\n").expandtabs(8).strip() + "\n"
    return [re.sub(r"[ \t]+\n", "\n", strip_licence(text))]


def strip_licence(text: str) -> str:
    """Drop a leading comment block that speaks of licence or copyright."""
    lead = re.match(r"(?:#[^\n]*\n|\s*\n)+", text)
    if lead and re.search(r"(?i)copyright|licen[cs]e|spdx|coding[:=]", lead[0]):
        text = text[lead.end() :]
    return text


READERS: dict[str, Reader] = {
    "html": html_page, "plain": plain, "markdown": markdown, "rst": rst, "pod": pod, "man": man,
    "r_strings": r_strings, "backticks": backticks, "wml": wml, "json": json_texts,
    "records": records, "code": code,
}  # fmt: skip
