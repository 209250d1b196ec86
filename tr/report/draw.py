"""The kinds of plot that reports use, in one look; each gives None where it has no data."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SEGMENTS = (*COLOURS, "#8C6BB1", "#F0E442", "#A6761D", "#66C2A5", "#E7298A", "#1B9E77")
GREY = "#BBBBBB"
MARKS = "os^Dvx"
Families = Mapping[str, Mapping[str, Any]]


def axes(x: str, y: str, title: str, height: float = 4.5, along: str = "y") -> tuple[Figure, Axes]:
    """`along`: the axis that carries the numbers."""
    figure = Figure(figsize=(8, height), layout="constrained")
    made = figure.add_subplot()
    made.set_xlabel(x, fontsize=12)
    made.set_ylabel(y, fontsize=12)
    made.set_title(title, fontsize=13, loc="left")
    made.tick_params(labelsize=11)
    made.spines[["top", "right"]].set_visible(False)
    made.grid(axis=along, alpha=0.3)  # type: ignore[arg-type]
    made.set_axisbelow(True)
    return figure, made


def legend(axes: Axes) -> None:
    axes.legend(fontsize=11, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _places(groups: int, bars: int, i: int) -> list[float]:
    """Where bar i of each group stands; a group is 0.8 wide."""
    return [n + (i - (bars - 1) / 2) * 0.8 / bars for n in range(groups)]


def _lines_of_text(axes: Axes, names: Sequence[str]) -> None:
    """Names down the left side, the first one on top, and room for numbers on the right."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.12)


def grouped_bars(
    families: Families, bars: Mapping[str, str], x: str, y: str, title: str, digits: int
) -> Figure | None:
    """One group per family, one bar per key of `bars` (key to label)."""
    keys = [key for key in bars if any(values.get(key) is not None for values in families.values())]
    if not keys:
        return None
    figure, drawn_on = axes(x, y, title)
    for i, key in enumerate(keys):
        heights = [values.get(key) or 0.0 for values in families.values()]
        left = _places(len(families), len(keys), i)
        colour = COLOURS[i % len(COLOURS)]
        drawn = drawn_on.bar(left, heights, 0.736 / len(keys), color=colour, label=bars[key])
        drawn_on.bar_label(drawn, fmt=f"%.{digits}f", fontsize=10, padding=2)
    drawn_on.set_xticks(range(len(families)), list(families))
    drawn_on.margins(y=0.12)
    if len(keys) > 1:
        legend(drawn_on)
    return figure


def lying_bars(
    families: Families, bars: Mapping[str, str], x: str, title: str, digits: int
) -> Figure | None:
    """As `grouped_bars`, lying: for families with long names."""
    keys = [key for key in bars if any(values.get(key) is not None for values in families.values())]
    if not keys:
        return None
    height = max(2.5, 1.2 + 0.2 * len(families) * (len(keys) + 0.5))
    figure, drawn_on = axes(x, "", title, height, "x")
    for i, key in enumerate(keys):
        lengths = [values.get(key) or 0.0 for values in families.values()]
        low = _places(len(families), len(keys), i)
        colour = SEGMENTS[i % len(SEGMENTS)]
        drawn = drawn_on.barh(low, lengths, 0.736 / len(keys), color=colour, label=bars[key])
        drawn_on.bar_label(drawn, fmt=f"%.{digits}f", fontsize=9, padding=2)
    _lines_of_text(drawn_on, list(families))
    if len(keys) > 1:
        legend(drawn_on)
    return figure


def stacked_bars(bars: Families, names: Sequence[str], x: str, title: str) -> Figure | None:
    """One lying bar per entry of `bars`, a segment per name in this order, the last one grey."""
    if not bars:
        return None
    figure, drawn_on = axes(x, "", title, max(3.6, 1.2 + 0.27 * len(names)), "x")
    left = [0.0] * len(bars)
    for i, name in enumerate(names):
        lengths = [float(values.get(name) or 0.0) for values in bars.values()]
        colour = GREY if i == len(names) - 1 else SEGMENTS[i % len(SEGMENTS)]
        drawn_on.barh(range(len(bars)), lengths, 0.6, left=left, color=colour, label=name)
        left = [a + b for a, b in zip(left, lengths, strict=True)]
    for place, total in enumerate(left):
        drawn_on.text(total, place, f" {total:,.0f}", va="center", fontsize=11)
    _lines_of_text(drawn_on, list(bars))
    legend(drawn_on)
    return figure


def lines(families: Families, key: str, x: str, y: str, title: str) -> Figure | None:
    """One line per family over positions 1, 2, ...; families without the list are left out, and
    the others keep the colours that bars give them.
    """
    series = {
        i: (name, values[key])
        for i, (name, values) in enumerate(families.items())
        if values.get(key)
    }
    if not series:
        return None
    figure, drawn_on = axes(x, y, title)
    for i, (name, values) in series.items():
        positions = range(1, len(values) + 1)
        colour = SEGMENTS[i % len(SEGMENTS)]
        drawn_on.plot(positions, values, MARKS[i % len(MARKS)] + "-", color=colour, label=name)
    drawn_on.set_xticks(range(1, max(len(values) for _, values in series.values()) + 1))
    drawn_on.set_ylim(0, 1.02)
    legend(drawn_on)
    return figure


def curves(
    series: Mapping[str, Mapping[int, Sequence[float]]], x: str, y: str, title: str
) -> Figure | None:
    """One line per series over numbers on a scale of doublings: a value, or it with its range."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        return None
    figure, drawn_on = axes(x, y, title)
    for i, (name, points) in enumerate(series.items()):
        colour, at = SEGMENTS[i % len(SEGMENTS)], sorted(points)
        values = [points[n][0] for n in at]
        drawn_on.plot(at, values, MARKS[i % len(MARKS)] + "-", color=colour, label=name)
        if all(len(points[n]) == 3 for n in at):
            low, high = ([points[n][j] for n in at] for j in (1, 2))
            drawn_on.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    ticks = sorted({n for points in series.values() for n in points})
    drawn_on.set_xscale("log", base=2)
    drawn_on.set_xticks(ticks, [f"{n:,}" for n in ticks])
    drawn_on.minorticks_off()
    if len(series) > 1:
        legend(drawn_on)
    return figure
