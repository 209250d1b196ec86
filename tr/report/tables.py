"""Figures as tables: one per top-level key, a row per innermost mapping; Markdown and rich."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table as RichTable

WIDE = 8  # columns that fit a terminal and a page


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]  # the first one names the rows
    rows: tuple[tuple[str, ...], ...]


def label(name: str) -> str:
    """A figure's key as a heading: `raw_tokens_per_s` becomes `raw tokens/s`."""
    return name.replace("_per_", "/").replace("_", " ")


def number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if 0 < size < 0.001:
        return f"{value:.2e}"
    digits = 3 if 0 < size < 0.01 else 2 if size < 100 else 1 if size < 10_000 else 0
    return f"{value:,.{digits}f}"


def _rows(node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping inside `node` that holds values of its own: its path and those values."""
    values = {k: v for k, v in node.items() if not isinstance(v, Mapping)}
    if values:
        yield " / ".join(path), values
    for key, child in node.items():
        if isinstance(child, Mapping):
            yield from _rows(child, (*path, str(key)))


def is_curve(node: Any) -> bool:
    """Whether a mapping is a curve over numbered steps: too long for a table."""
    return isinstance(node, Mapping) and len(node) > 16 and all(str(key).isdigit() for key in node)


def _table(title: str, names: list[str], rows: list[tuple[str, Mapping[str, Any]]]) -> Table:
    """A row per mapping; where the columns would be many more, a column per mapping."""
    body = tuple((row, *(number(values.get(name)) for name in names)) for row, values in rows)
    head = ("", *map(label, names))
    if len(head) > WIDE and len(rows) < len(names):
        head, *turned = zip(head, *body, strict=True)
        body = tuple(turned)
    return Table(title, head, body)


def _listing(title: str, entries: list[Mapping[str, Any]]) -> Table:
    """A row per entry, its first value first."""
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    rows = tuple(tuple(number(entry.get(name)) for name in names) for entry in entries)
    return Table(title, tuple(map(label, names)), rows)


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Tables of numbers first; each list (by position, by length) becomes one of its own after.

    Curves are left to the plots.
    """
    figures = {key: value for key, value in figures.items() if not is_curve(value)}
    plain: list[Table] = []
    lists: list[Table] = []
    loose = {k: v for k, v in figures.items() if not isinstance(v, Mapping)}
    nested = {k: v for k, v in figures.items() if isinstance(v, Mapping)}
    if loose:
        rows = tuple((label(k), number(v)) for k, v in loose.items() if not isinstance(v, list))
        plain += [Table("figures", ("", "value"), rows)] if rows else []
        for key, value in loose.items():
            if isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
                plain.append(_listing(label(key), value))
            elif isinstance(value, list):
                nested[key] = {"": {key: value}}
    for title, node in nested.items():
        rows = list(_rows(node, ()))
        names = list(dict.fromkeys(name for _, values in rows for name in values))
        spread = [n for n in names if any(isinstance(values.get(n), list) for _, values in rows)]
        single = [name for name in names if name not in spread]
        if single:
            plain.append(_table(label(title), single, rows))
        for name in spread:
            listed = [(row, values[name]) for row, values in rows if values.get(name)]
            series = [(row, dict(enumerate(values))) for row, values in listed]
            length = max((len(values) for _, values in series), default=0)
            body = tuple(
                (row, *(number(values.get(i)) for i in range(length))) for row, values in series
            )
            heading = label(title) if title == name else f"{label(title)}: {label(name)}"
            positions = tuple(str(i + 1) for i in range(length))
            lists.append(Table(heading, ("", *positions), body))
    return plain + lists


def markdown(table: Table, align: str = "---:|") -> str:
    """`align`: of the columns after the first."""
    head = "| " + " | ".join(table.columns) + " |"
    rule = "|---|" + align * (len(table.columns) - 1)
    rows = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table.rows
    )
    return "\n".join((head, rule, *rows))


def rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left")
    shown.add_column(table.columns[0])
    for column in table.columns[1:]:
        shown.add_column(column, justify="right")
    for row in table.rows:
        shown.add_row(*row)
    return shown
