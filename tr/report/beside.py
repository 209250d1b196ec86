"""Records of one experiment beside each other: devices, versions, what they were told, figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tr.report.found import differing, flat
from tr.report.origin import CELLS
from tr.report.record import leaves
from tr.report.tables import Table, is_curve, number

Records = Mapping[str, Mapping[str, Any]]
ACROSS = 6  # records that fit one table


def short(titles: list[str]) -> dict[str, str]:
    """Titles without the path that all of them begin with."""
    parts = [PurePath(title).parts for title in titles]
    same = 0
    while all(len(p) > same + 1 and p[same] == parts[0][same] for p in parts):
        same += 1
    return {title: "/".join(p[same:]) for title, p in zip(titles, parts, strict=True)}


def values(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures by dotted path, without curves."""
    return dict(leaves({key: value for key, value in figures.items() if not is_curve(value)}))


def settings(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Settings that differ, prompts aside; of those that not all records know, the number."""
    configs = [flat(record["config"]) for record in records]
    known = set(configs[0]).intersection(*configs)
    if any(len(config) > len(known) for config in configs):
        yield ("settings that not all know", *(str(len(config) - len(known)) for config in configs))
    for key in differing(records):
        cells = [str(config.get(key)) for config in configs]
        if key in known and max(map(len, cells)) <= 60:
            yield (f"config {key}", *cells)


def rows(records: Records) -> Iterator[tuple[str, ...]]:
    shown = list(records.values())
    for name, cell in CELLS.items():
        cells = [cell(record) for record in shown]
        if any(text != "-" for text in cells):
            yield (name, *cells)
    yield from settings(shown)
    found = [values(record["figures"]) for record in shown]
    for path in dict.fromkeys(path for figures in found for path in figures):
        yield (path, *(number(figures.get(path)) for figures in found))


def tables(records: Records) -> list[Table]:
    """Of each experiment with several records, tables of up to six of them."""
    groups: dict[str, dict[str, Mapping[str, Any]]] = {}
    for title, record in records.items():
        groups.setdefault(record["experiment"], {})[title] = record
    made = []
    for experiment, group in groups.items():
        titles = list(group)
        for start in range(0, len(titles) if len(titles) > 1 else 0, ACROSS):
            some = titles[start : start + ACROSS]
            names = short(titles)
            head = ("", *(names[title] for title in some))
            body = tuple(rows({title: group[title] for title in some}))
            made.append(Table(f"{experiment}, side by side", head, body))
    return made
