"""Plots drawn from their data, in a theme: PNG or SVG bytes that depend on nothing else."""

import io
from collections.abc import Callable, Sequence
from itertools import pairwise

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tr.report.plot import Plot
from tr.report.theme import DASHES, LIMIT, MARKS, Theme, slots

SETTINGS = {
    "font.family": "DejaVu Sans",  # matplotlib's own, so that every machine has it
    "font.size": 11,
    "svg.hashsalt": "tr",
    "svg.fonttype": "path",
    "path.simplify": False,
}
BARE = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
LABELLED = 16  # bars that have room for their numbers


def parts(name: str) -> tuple[str, str]:
    """`dflash2, fp8`: what is coloured, and what marks and dashes tell apart."""
    head, _, rest = name.partition(", ")
    return head, rest


def looks(plot: Plot, theme: Theme) -> dict[str, tuple[str, str, str]]:
    """Colour, mark and dash of every series."""
    colours = slots(parts(name)[0] for name in plot.series)
    rest = list(dict.fromkeys(parts(name)[1] for name in plot.series))
    found = {}
    for i, name in enumerate(plot.series):
        head, other = parts(name)
        turn = rest.index(other) if len(rest) > 1 else i // LIMIT
        mark = MARKS[(rest.index(other) if len(rest) > 1 else i) % len(MARKS)]
        found[name] = (theme.colours[colours[head]], mark, DASHES[turn % len(DASHES)])
    return found


def categories(plot: Plot) -> list[str]:
    return list(dict.fromkeys(str(point[0]) for points in plot.series.values() for point in points))


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def plain(value: float, _: int) -> str:
    """A tick: no more digits than it needs."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _room_for_numbers(axes: Axes, plot: Plot, along: str) -> None:
    """Where the number axis begins and ends; from a given beginning, with some room on top."""
    limit = axes.set_xlim if along == "x" else axes.set_ylim
    low, high = axes.get_xlim() if along == "x" else axes.get_ylim()
    if plot.least is not None:
        low, high = plot.least, high + (high - plot.least) * 0.05
    limit(low, high if plot.most is None else plot.most)


def _bars(axes: Axes, plot: Plot, theme: Theme, along: str) -> None:
    """Bars in groups, standing (numbers along y) or lying, the first group on top."""
    groups, bars = categories(plot), len(plot.series)
    wide = 0.8 / bars
    for i, (name, points) in enumerate(plot.series.items()):
        places = [groups.index(str(point[0])) + (i - (bars - 1) / 2) * wide for point in points]
        values = [point[1] for point in points]
        colour = looks(plot, theme)[name][0]
        if along == "y":
            drawn = axes.bar(places, values, wide * 0.9, color=colour, label=name)
        else:
            drawn = axes.barh(places, values, wide * 0.9, color=colour, label=name)
        if along == "x" or bars * len(groups) <= LABELLED:
            numbers = [number(value, plot.digits) for value in values]
            axes.bar_label(drawn, numbers, fontsize=9.5, padding=2, color=theme.ink)
    said = [f"{int(name):,}" if name.isdigit() else name for name in groups]
    if along == "y":
        axes.set_xticks(range(len(groups)), said)
        axes.margins(y=0.1)
    else:
        axes.set_yticks(range(len(groups)), said)
        axes.set_ylim(len(groups) - 0.45, -0.55)
        axes.margins(x=0.12)
    _room_for_numbers(axes, plot, along)


def standing(axes: Axes, plot: Plot, theme: Theme) -> None:
    _bars(axes, plot, theme, "y")


def lying(axes: Axes, plot: Plot, theme: Theme) -> None:
    _bars(axes, plot, theme, "x")


def curves(axes: Axes, plot: Plot, theme: Theme) -> None:
    """A line per series over numbers, doublings or names; a band where points have a spread."""
    names = categories(plot) if plot.x_scale == "names" else []
    for name, points in plot.series.items():
        colour, mark, dash = looks(plot, theme)[name]
        at = [names.index(str(point[0])) if names else point[0] for point in points]
        long = len(points) > 40
        axes.plot(
            at,
            [point[1] for point in points],
            color=colour,
            marker="" if long else mark,
            linestyle=dash,
            markersize=6,
            linewidth=1.8,
            label=name,
        )
        if all(len(point) == 4 for point in points):
            low, high = ([point[j] for point in points] for j in (2, 3))
            axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        if names and len(plot.series) == 1 and len(points) <= LABELLED:
            for x, point in zip(at, points, strict=True):
                said, above = number(point[1], plot.digits), (0, 7)
                axes.annotate(
                    said,
                    (x, point[1]),
                    above,
                    textcoords="offset points",
                    ha="center",
                    fontsize=9.5,
                    color=theme.ink,
                )
    _along(axes, plot, names)
    _room_for_numbers(axes, plot, "y")


def _along(axes: Axes, plot: Plot, names: Sequence[str]) -> None:
    """Ticks of the x axis."""
    if names:
        axes.set_xticks(range(len(names)), names)
        if len(names) > 5:
            axes.tick_params(axis="x", labelrotation=35)
            for tick in axes.get_xticklabels():
                tick.set_horizontalalignment("right")
    elif plot.x_scale == "doublings":
        axes.set_xscale("log", base=2)
        ticks = sorted({point[0] for points in plot.series.values() for point in points})
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.minorticks_off()
    elif plot.x_scale == "log":
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def points(axes: Axes, plot: Plot, theme: Theme) -> None:
    """A mark per series with its name beside it, moved up or down where names would meet."""
    shown = [(name, *place[:2]) for name, places in plot.series.items() for place in places]
    for name, x, y in shown:
        colour, mark, _ = looks(plot, theme)[name]
        axes.plot([x], [y], color=colour, marker=mark, markersize=8, linestyle="")
    low, high = min(x for _, x, _ in shown), max(x for _, x, _ in shown)
    room = (high - low) or abs(high) * 0.05 or 1.0
    axes.set_xlim(low - room * 0.15, high + room * 0.75)
    axes.margins(y=0.12)
    places = sorted({x for _, x, _ in shown})
    if len(places) <= 3 and all(b - a > room * 0.2 for a, b in pairwise(places)):
        axes.set_xticks(places, [f"{x:.4g}" for x in places])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    _room_for_numbers(axes, plot, "y")
    bottom, top = axes.get_ylim()
    place = axes.transAxes.inverted()
    heights = [place.transform(axes.transData.transform((x, y)))[1] for _, x, y in shown]
    edges = [place.transform(axes.transData.transform((x, y)))[0] for _, x, y in shown]
    for (name, x, y), height, edge in zip(
        shown, apart(heights, 0.062), (max(edges) + 0.06 for _ in edges), strict=True
    ):
        axes.annotate(
            f"{name}  {y:.3g}",
            (x, y),
            (edge, height),
            textcoords=axes.transAxes,
            va="center",
            fontsize=10,
            color=theme.ink,
            arrowprops={"arrowstyle": "-", "color": theme.faint, "shrinkA": 0, "shrinkB": 5},
        )
    axes.set_ylim(bottom, top)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights in the same order, at least `gap` from each other, moved as little as an even
    spreading of each crowd allows, within 0 to 1 where they fit.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    crowds: list[list[int]] = []
    centre: list[float] = []
    for i in order:
        crowds.append([i])
        centre.append(heights[i])
        while len(crowds) > 1 and (
            centre[-1] - centre[-2] < gap * (len(crowds[-1]) + len(crowds[-2])) / 2
        ):
            members = crowds.pop(-2) + crowds.pop()
            crowds.append(members)
            centre[-2:] = [sum(heights[j] for j in members) / len(members)]
            half = gap * len(members) / 2
            centre[-1] = min(max(centre[-1], half), max(1 - half, half))
    moved = [0.0] * len(heights)
    for members, middle in zip(crowds, centre, strict=True):
        for place, i in enumerate(members):
            moved[i] = middle + (place - (len(members) - 1) / 2) * gap
    return moved


def spans(axes: Axes, plot: Plot, theme: Theme) -> None:
    """Bars from one number to another, a line of text each, with the difference beside them: what
    adds in one colour, what saves in another.
    """
    shown = [
        (str(name), float(a), float(b)) for line in plot.series.values() for name, a, b in line
    ]
    ends = [end for _, *two in shown for end in two] + list(plot.marks.values())
    room = (max(ends) - min(ends)) or abs(max(ends)) * 0.05
    for place, (_, start, stop) in enumerate(shown):
        colour = theme.colours[2 if stop >= start else 6]
        axes.barh([place], [stop - start], 0.62, left=[start], color=colour)
        said = f"{stop - start:+,.{plot.digits}f} ({(stop - start) / start:+.1%})"
        edge = max(start, stop) + room * 0.015
        axes.text(edge, place, said, va="center", fontsize=9.5, color=theme.ink)
    axes.set_yticks(range(len(shown)), [name for name, *_ in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    least = min(ends) - room * 0.08 if plot.least is None else plot.least
    axes.set_xlim(least, max(ends) + room * 0.42 if plot.most is None else plot.most)


DRAWN: dict[str, Callable[[Axes, Plot, Theme], None]] = {
    "bars": standing,
    "lying_bars": lying,
    "curves": curves,
    "points": points,
    "spans": spans,
}


def _height(plot: Plot) -> float:
    """Inches: lying kinds grow with their lines."""
    if plot.kind == "lying_bars":
        return max(3.0, 1.6 + 0.2 * len(categories(plot)) * (len(plot.series) + 0.5))
    if plot.kind == "spans":
        return max(3.0, 1.8 + 0.36 * sum(map(len, plot.series.values())))
    return 4.4


def _legend(figure: Figure, plot: Plot, theme: Theme) -> None:
    """Below the data, in as many columns as fit the width."""
    if len(plot.series) < 2 and not plot.marks or plot.kind == "points":
        return
    (axes,) = figure.axes
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    labels = [*(plot.series if plot.kind != "spans" else ()), *plot.marks]
    wide = 0.72 + 0.075 * max(map(len, labels))  # inches of an entry
    columns = min(max(int(7.1 / wide), 1), len(labels))
    rows = -(-len(labels) // columns)
    columns = -(-len(labels) // rows)
    turned = [name for column in range(columns) for name in labels[column::columns]]
    figure.legend(
        [found[name] for name in turned],
        turned,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=10.5,
        labelcolor=theme.ink,
        handlelength=2.4,
    )


def _frame(axes: Axes, plot: Plot, theme: Theme) -> None:
    across = plot.kind in ("lying_bars", "spans")
    axes.set_facecolor(theme.paper)
    axes.set_xlabel(plot.x, color=theme.ink)
    axes.set_ylabel(plot.y, color=theme.ink)
    length = 0 if across else 3
    axes.tick_params(which="both", colors=theme.ink, labelsize=10.5, length=length)
    if plot.y_scale == "log":
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 4 * low else range(1, 10)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif not across:
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
    if across:
        axes.xaxis.set_major_formatter(FuncFormatter(plain))
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(theme.faint)
    axes.grid(axis="x" if across else "y", color=theme.faint, linewidth=0.8)
    if plot.kind == "points":
        axes.grid(axis="both", color=theme.faint, linewidth=0.8)
    axes.set_axisbelow(True)
    draw_mark = axes.axvline if across else axes.axhline
    for (label, value), dash in zip(plot.marks.items(), (DASHES[1], DASHES[2]) * 4, strict=False):
        draw_mark(value, color=theme.ink, linewidth=1.2, linestyle=dash, label=label)


def figure(plot: Plot, theme: Theme) -> Figure:
    """Title and note at the top left, the data, the legend below."""
    with matplotlib.rc_context(SETTINGS):
        height = _height(plot)
        made = Figure(figsize=(7.2, height), layout="constrained", facecolor=theme.paper)
        head = (0.62 if plot.note else 0.4) / height
        made.get_layout_engine().set(rect=(0.012, 0.01, 0.97, 0.99 - head))  # type: ignore[union-attr]
        axes = made.add_subplot()
        if plot.y_scale == "log":
            axes.set_yscale("log")
        DRAWN[plot.kind](axes, plot, theme)
        _frame(axes, plot, theme)
        ink = {"color": theme.ink, "ha": "left", "va": "top"}
        made.text(0.015, 1 - 0.1 / height, plot.title, fontsize=13, weight="bold", **ink)
        made.text(0.015, 1 - 0.37 / height, plot.note, fontsize=9.5, **ink)
        _legend(made, plot, theme)
    return made


def picture(plot: Plot, theme: Theme, kind: str) -> bytes:
    """`kind` png or svg: the same bytes for the same plot and matplotlib."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure(plot, theme).savefig(buffer, format=kind, dpi=150, metadata=BARE[kind])
    return buffer.getvalue()
