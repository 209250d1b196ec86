"""Figures as plots: `PLOTS` maps an experiment to its plots; others have tables only."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tr.report.origin import brief
from tr.report.plot import Plot
from tr.report.plots import drafts, quality, speed

Make = Callable[[Mapping[str, Any]], Plot | None]
PLOTS: dict[str, dict[str, Make]] = {**drafts.PLOTS, **speed.PLOTS, **quality.PLOTS}


def noted(plot: Plot, record: Mapping[str, Any]) -> Plot:
    """A plot that says where its numbers come from."""
    said = [plot.note, brief(record)]
    if record["simulated_acceptance"]:
        said.append("simulated acceptance")
    return replace(plot, note="; ".join(filter(None, said)))


def drawn(make: Make, figures: Mapping[str, Any]) -> Plot | None:
    """None too where an older record lacks a figure that the plot needs."""
    try:
        return make(figures)
    except KeyError:
        return None


def plots(record: Mapping[str, Any]) -> dict[str, Plot]:
    """A record's plots by name; one without data is left out."""
    found = PLOTS.get(record["experiment"], {}).items()
    made = {name: drawn(make, record["figures"]) for name, make in found}
    return {name: noted(plot, record) for name, plot in made.items() if plot is not None}
