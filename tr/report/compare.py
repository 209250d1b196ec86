"""Two sets of records beside each other: the ratio of each figure, and whether it is noise."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tr.report import beside
from tr.report.origin import CELLS
from tr.report.tables import Table, is_curve, markdown, number

Record = Mapping[str, Any]
SLOW = ("_ms", "_us", "_s", "seconds")  # less is faster
FAST = ("per_s", "wall_fraction", "matmul_fraction", "tflops")  # more is faster
RANGES = (("{}_min", "{}_max"), ("least_{}", "most_{}"), ("{}_low", "{}_high"))
SPREADS = ("_min", "_max", "_low", "_high", "_by_turn", "_by_place", "_range", "_drift_ms")


@dataclass(frozen=True)
class Value:
    """A figure, and the range that its run gave it: from repetitions, or None."""

    value: Any
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Change:
    figure: str
    before: Value
    after: Value
    ratio: float | None
    bound: str
    said: str  # equal, noise, faster, slower, higher, lower, differs

    @property
    def counts(self) -> bool:
        return self.said not in ("equal", "noise")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_spread(key: str) -> bool:
    """Whether a key only tells how far another figure's repetitions lie apart."""
    return key.startswith(("least_", "most_")) or key.endswith(SPREADS)


def spread(node: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """The range of a figure's repetitions, from the keys beside it."""
    for low, high in RANGES:
        ends = (node.get(low.format(key)), node.get(high.format(key)))
        if all(map(is_number, ends)):
            return ends  # type: ignore[return-value]
    turns = [v for v in node.get(f"{key}_by_turn") or node.get(f"{key}_by_place") or () if v]
    drift = node.get("on_drift_ms") if key in ("on_step_ms", "off_step_ms") else None
    if len(turns) > 1:
        return min(turns), max(turns)
    if is_number(drift) and is_number(node[key]):
        return node[key] - drift, node[key] + drift
    return None


def values(node: Any, path: str = "") -> Iterator[tuple[str, Value]]:
    """Every figure by dotted path, without curves; spreads go with the figure they belong to."""
    if isinstance(node, Mapping):
        if is_curve(node):
            return
        for key, child in node.items():
            name = f"{path}.{key}" if path else str(key)
            if is_spread(str(key)):
                continue
            if isinstance(child, (Mapping, list)):
                yield from values(child, name)
            else:
                yield name, Value(child, spread(node, str(key)))
    elif isinstance(node, list):
        for i, child in enumerate(node):
            if isinstance(child, (Mapping, list)):
                yield from values(child, f"{path}.{i}")
            else:
                yield f"{path}.{i}", Value(child)


def change(figure: str, before: Value, after: Value, noise: float) -> Change:
    """A change is noise where the runs' own ranges meet, or, without ranges, within `noise`."""
    a, b = before.value, after.value
    if not is_number(a) or not is_number(b):
        said = "equal" if a == b else "differs"
        return Change(figure, before, after, None, "-", said)
    ratio = b / a if a else None
    ranges = [v.spread or (v.value, v.value) for v in (before, after)]
    if before.spread or after.spread:
        shown = [f"{number(low)} to {number(high)}" for low, high in ranges]
        bound = " and ".join(dict.fromkeys(shown))
        near = ranges[0][0] <= ranges[1][1] and ranges[1][0] <= ranges[0][1]
    else:
        bound = f"{noise:.1%}"
        near = ratio is not None and abs(ratio - 1) <= noise
    if a == b:
        said = "equal"
    elif near:
        said = "noise"
    else:
        last = figure.rpartition(".")[2]
        quick, slow = last.endswith(FAST), last.endswith(SLOW) or last in ("us", "ms")
        words = ("faster", "slower") if quick or slow else ("higher", "lower")
        said = words[0] if (b > a) == (quick or not slow) else words[1]
    return Change(figure, before, after, ratio, bound, said)


def changes(before: Record, after: Record, noise: float) -> list[Change]:
    """Of every figure that both hold."""
    a, b = (dict(values(record["figures"])) for record in (before, after))
    return [change(figure, a[figure], b[figure], noise) for figure in a if figure in b]


def purpose(record: Record) -> str:
    """Experiment and config but for the device: what pairs two people's runs."""
    config = {key: value for key, value in record["config"].items() if key != "device"}
    return json.dumps([record["experiment"], config], sort_keys=True)


def pairs(a: Mapping[str, Record], b: Mapping[str, Record]) -> list[tuple[str, Record, Record]]:
    """Records of two sets that belong together: the only ones, of one name, or of one config."""
    if len(a) == len(b) == 1:
        names = [(next(iter(a)), next(iter(b)))]
    else:
        names = [(name, name) for name in a if name in b]
        left = {purpose(b[name]): name for name in b if name not in a}
        names += [
            (name, left[purpose(record)])
            for name, record in a.items()
            if name not in b and purpose(record) in left
        ]
    for one, other in names:
        said = (a[one]["experiment"], b[other]["experiment"])
        if said[0] != said[1]:
            raise ValueError(
                f"cannot compare {one} with {other}: expected one experiment, got {said[0]} and"
                f" {said[1]}; choose records of one"
            )
    if not names:
        raise ValueError(
            f"nothing to compare: no record of A ({', '.join(list(a)[:4])}) has a counterpart of"
            f" its name or config in B ({', '.join(list(b)[:4])}); name two records instead"
        )
    return [(one, a[one], b[other]) for one, other in names]


def origins(before: Record, after: Record) -> Table:
    cells = [(name, cell(before), cell(after)) for name, cell in CELLS.items()]
    rows: list[tuple[str, ...]] = [row for row in cells if row[1:] != ("-", "-")]
    rows += beside.settings([before, after])
    return Table("runs", ("", "A", "B"), tuple(rows))


def section(title: str, before: Record, after: Record, noise: float) -> str:
    found = changes(before, after, noise)
    beyond = [c for c in found if c.counts]
    said = f"{len(beyond)} of {len(found)} figures changed by more than noise."
    rows = tuple(
        (
            c.figure,
            number(c.before.value),
            number(c.after.value),
            "-" if c.ratio is None else f"{c.ratio:.3f}",
            c.bound,
            f"**{c.said}**" if c.counts else c.said,
        )
        for c in found
    )
    table = Table("figures", ("", "A", "B", "B / A", "noise bound", ""), rows)
    a, b = (set(dict(values(record["figures"]))) for record in (before, after))
    alone = [f"{len(some)} figures only in {name}" for name, some in (("A", a - b), ("B", b - a))]
    alone = [line for line in alone if not line.startswith("0 ")]
    parts = [f"## {title}", said + "".join(f" {line}." for line in alone)]
    return "\n\n".join([*parts, markdown(origins(before, after)), markdown(table)]) + "\n"


def page(
    a: Mapping[str, Record], b: Mapping[str, Record], names: tuple[str, str], noise: float
) -> str:
    """Markdown: A and B beside each other."""
    found = pairs(a, b)
    head = [
        f"# A: {names[0]}, B: {names[1]}",
        "A change is called noise where the ranges that the runs themselves measured meet; of"
        f" figures without a range, where it is at most {noise:.1%}.",
    ]
    used = {id(record) for _, *two in found for record in two}
    for name, some in zip("AB", (a, b), strict=True):
        alone = [title for title, record in some.items() if id(record) not in used]
        if alone:
            head.append(f"Only in {name}: {', '.join(alone)}.")
    return "\n\n".join(head) + "\n\n" + "\n".join(section(*pair, noise) for pair in found)
