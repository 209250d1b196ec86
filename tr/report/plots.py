"""Figures as PNG plots: `PLOTS` maps an experiment to its plots; others have tables only."""

import io
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tr.report.tables import is_curve

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
Families = Mapping[str, Mapping[str, Any]]


def _axes(x: str, y: str, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x, fontsize=12)
    axes.set_ylabel(y, fontsize=12)
    axes.set_title(title, fontsize=13, loc="left")
    axes.tick_params(labelsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=11, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def grouped_bars(
    families: Families, bars: Mapping[str, str], x: str, y: str, title: str, digits: int
) -> Figure | None:
    """One group per family, one bar per key of `bars` (key to label); None without any data."""
    keys = [key for key in bars if any(values.get(key) is not None for values in families.values())]
    if not keys:
        return None
    figure, axes = _axes(x, y, title)
    width = 0.8 / len(keys)
    for i, key in enumerate(keys):
        heights = [values.get(key) or 0.0 for values in families.values()]
        left = [n + (i - (len(keys) - 1) / 2) * width for n in range(len(families))]
        drawn = axes.bar(left, heights, 0.92 * width, color=COLOURS[i % 6], label=bars[key])
        axes.bar_label(drawn, fmt=f"%.{digits}f", fontsize=10, padding=2)
    axes.set_xticks(range(len(families)), list(families))
    axes.margins(y=0.12)
    _legend(axes)
    return figure


def lines(families: Families, key: str, x: str, y: str, title: str) -> Figure | None:
    """One line per family over positions 1, 2, ...; None where no family has the list."""
    series = {name: values[key] for name, values in families.items() if values.get(key)}
    if not series:
        return None
    figure, axes = _axes(x, y, title)
    for i, (name, values) in enumerate(series.items()):
        positions = range(1, len(values) + 1)
        axes.plot(positions, values, "os^Dvx"[i % 6] + "-", color=COLOURS[i % 6], label=name)
    axes.set_xticks(range(1, max(map(len, series.values())) + 1))
    axes.set_ylim(0, 1.02)
    _legend(axes)
    return figure


def tokens_per_step(figures: Mapping[str, Any]) -> Figure | None:
    families, suffix = figures["families"], "tokens_per_step"
    keys = (key for values in families.values() for key in values if key.endswith(suffix))
    bars = {key: key.removesuffix(suffix).strip("_") or "greedy" for key in keys}
    title = f"Tokens per step, draft {figures.get('draft', 'unnamed')}"
    return grouped_bars(families, bars, "prompt family", "tokens per step", title, 2)


def accepted_by_position(figures: Mapping[str, Any]) -> Figure | None:
    return lines(
        figures["families"],
        "accepted_by_position",
        "position in the draft",
        "share of steps that accept it",
        "Acceptance by position",
    )


def tokens_per_s(figures: Mapping[str, Any]) -> Figure | None:
    bars = {f"{name}_tokens_per_s": name for name in ("raw", "speculative")}
    families, title = figures["families"], "Decoding speed"
    return grouped_bars(families, bars, "prompt family", "tokens per second", title, 0)


def losses(figures: Mapping[str, Any]) -> Figure | None:
    """Loss over steps; None where a run was too short to make a curve."""
    curve = figures.get("losses_nats", {})
    if not is_curve(curve):
        return None
    figure, axes = _axes("step", "loss, nats", "Training loss")
    axes.plot([int(step) for step in curve], list(curve.values()), color=COLOURS[0])
    axes.set_yscale("log")
    return figure


PLOTS: dict[str, dict[str, Callable[[Mapping[str, Any]], Figure | None]]] = {
    "dflash2_verify": {
        "tokens_per_step": tokens_per_step,
        "accepted_by_position": accepted_by_position,
        "tokens_per_s": tokens_per_s,
    },
    "train_tiny": {"losses": losses},
    "train_draft": {"losses": losses},
}


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def plots(record: Mapping[str, Any]) -> dict[str, bytes]:
    """PNG bytes by name; a plot without data is left out."""
    drawn = {n: f(record["figures"]) for n, f in PLOTS.get(record["experiment"], {}).items()}
    return {name: png(figure) for name, figure in drawn.items() if figure is not None}
