"""Plots over several records: decoding by context side by side, and one figure over commits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tr.report import history
from tr.report.found import differing, flat
from tr.report.origin import brief
from tr.report.plot import Plot
from tr.report.plots.series import by_number
from tr.report.plots.speed import CONTEXT, WALL
from tr.report.tables import label

Records = Mapping[str, Mapping[str, Any]]
SAID = ("model.name", "quant.format", "kv.format", "jit.backend", "draft.strategy")


def labels(records: Records) -> dict[str, str]:
    """What tells records apart: device, model, formats; else their titles."""
    devices = {title: record["device"].get("name", "unknown") for title, record in records.items()}
    keys = [key for key in SAID if key in differing(list(records.values()))]
    said = {}
    for title, record in records.items():
        config = flat(record["config"])
        parts = [devices[title]] if len(set(devices.values())) > 1 else []
        parts += [str(config.get(key)) for key in keys]
        said[title] = ", ".join(parts)
    unique = len(set(said.values())) == len(said) and all(said.values())
    return said if unique else {title: title for title in records}


def by_context(records: Records, key: str, y: str, title: str, most: float | None) -> Plot | None:
    """One figure of raw decoding over contexts, a line per record."""
    named = labels(records)
    found = {named[t]: record["figures"]["contexts"] for t, record in records.items()}
    series = by_number(found, key)
    if not series:
        return None
    one = len({(r["device"].get("name"), r["commit"]) for r in records.values()}) == 1
    note = brief(next(iter(records.values()))) if one else ""
    return Plot("curves", title, CONTEXT, y, series, note, least=0, most=most)


def together(records: Records) -> dict[str, Plot]:
    """Plots that only several records make."""
    decoded = {title: r for title, r in records.items() if r["experiment"] == "decode"}
    if len(decoded) < 2:
        return {}
    title = "Raw decoding by context"
    made = {
        "wall_by_context": by_context(decoded, "wall_fraction", WALL, title, 1),
        "tokens_per_s_by_context": by_context(
            decoded, "tokens_per_s", "tokens per second", title, None
        ),
    }
    return {name: plot for name, plot in made.items() if plot is not None}


def over_commits(
    versions: Sequence[Mapping[str, Any]], figure: str, source: str, title: str = ""
) -> Plot:
    """A figure of one record's versions; ones of another experiment or config are not its own."""
    last = versions[-1]
    points = []
    for record in versions:
        value = history.figure(record, figure)
        if is_same_run(record, last) and isinstance(value, (int, float)):
            changed = "+" if record["dirty"] else ""
            when = record["utc"][5:16].replace("T", " ")
            points.append([f"{(record['commit'] or 'unknown')[:7]}{changed}\n{when}", value])
    if not points:
        raise ValueError(
            f"{source}: expected a number at the figure {figure}, got none in {len(versions)}"
            f" versions; its figures begin with {', '.join(list(last['figures'])[:6])}"
        )
    y = label(figure.rpartition(".")[2])
    title, note = title or f"{last['experiment']}: {label(figure)}", brief(last)
    x = "commit that was measured"
    return Plot("curves", title, x, y, {source: points}, note, digits=1, x_scale="names", least=0)


def is_same_run(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether configs agree in all that both have: new keys appear, and the device is described
    better over time.
    """
    a, b = flat(one["config"]), flat(other["config"])
    free = ("device.", "prompts.", "threads", "max_new_tokens")
    shared = [key for key in a if key in b and not key.startswith(free)]
    device = one["device"].get("name") == other["device"].get("name")
    return one["experiment"] == other["experiment"] and device and all(a[k] == b[k] for k in shared)


def progress(path: Path, figure: str, title: str = "") -> Plot:
    return over_commits(history.versions(path), figure, path.stem, title)
