"""Plots of time: steps by context, rows, operator and switch; prompts; streams; kernels alone."""

from collections.abc import Callable, Mapping
from typing import Any

from tr.report.kernels import by_rows, counted, fastest, is_large
from tr.report.plot import Plot
from tr.report.plots.series import by_key, by_number

Figures = Mapping[str, Any]
WALL = "share of the read wall"
CONTEXT = "context, tokens"


def contexts(figures: Figures) -> dict[str, dict[str, Any]]:
    """Decoding by context, with what the wall would allow."""
    wall = figures["wall_gb_per_s"] * 1e9
    return {
        context: {**values, "wall_tokens_per_s": wall / values["bytes_per_step"]}
        for context, values in figures["contexts"].items()
    }


def decoding_speed(figures: Figures) -> Plot | None:
    measured = by_number({"": contexts(figures)}, "tokens_per_s")
    allowed = by_number({"": contexts(figures)}, "wall_tokens_per_s")
    if not measured:
        return None
    series = {"measured": measured[""], "at the read wall": allowed[""]}
    title, y = "Raw decoding", "tokens per second"
    return Plot("curves", title, CONTEXT, y, series, least=0)


def decoding_share(figures: Figures) -> Plot | None:
    series = by_number({"raw": figures["contexts"]}, "wall_fraction")
    if not series:
        return None
    title = f"Raw decoding: share of a wall of {figures['wall_gb_per_s']:,.0f} GB/s"
    return Plot("curves", title, CONTEXT, WALL, series, least=0, most=1)


def sweep(key: str, y: str, title: str, most: float | None) -> Callable[[Figures], Plot | None]:
    """One figure of every strategy and cache over contexts."""

    def plot(figures: Figures) -> Plot | None:
        series = by_number(figures["strategies"], key)
        if not series:
            return None
        return Plot("curves", title, CONTEXT, y, series, least=0, most=most)

    return plot


def by_row_count(key: str, y: str, title: str, digits: int) -> Callable[[Figures], Plot | None]:
    def plot(figures: Figures) -> Plot | None:
        series = by_key(figures["rows"], {key: "step"})
        return Plot("bars", title, "rows", y, series, digits=digits) if series else None

    return plot


def prefill_speed(figures: Figures) -> Plot | None:
    series = by_key(figures["lengths"], {"tokens_per_s": "prompt"})
    title, x, y = "Reading a prompt", "prompt, tokens", "tokens per second"
    return Plot("bars", title, x, y, series, digits=0) if series else None


def prefill_share(figures: Figures) -> Plot | None:
    series = by_key(figures["lengths"], {"matmul_fraction": "prompt"})
    title, x, y = "Reading a prompt", "prompt, tokens", "share of the matmul ceiling"
    return Plot("bars", title, x, y, series, least=0, most=1) if series else None


def streams(figures: Figures) -> Plot | None:
    keys = {"aggregate_tokens_per_s": "all streams", "stream_tokens_per_s": "each stream"}
    series = {
        label: points
        for key, label in keys.items()
        for points in by_number({"": figures["streams"]}, key).values()
    }
    if not series:
        return None
    title, y = "Several streams at a time", "tokens per second"
    return Plot("curves", title, "streams", y, series, x_scale="doublings", least=0)


def kernel_shares(
    title: str, chosen: Callable[[str], bool]
) -> Callable[[Mapping[str, Any]], Plot | None]:
    """Some operators, each by its fastest variant: share of the wall by case and rows."""

    def plot(figures: Figures) -> Plot | None:
        families: dict[str, dict[str, float]] = {}
        for operator, variants in figures.items():
            if isinstance(variants, Mapping) and chosen(operator):
                variant = fastest(variants)
                for name, shares in by_rows(variants[variant]).items():
                    families[f"{operator}.{variant}: {name}"] = shares
        counts = sorted({rows for values in families.values() for rows in values}, key=int)
        series = by_key(families, {rows: counted(rows) for rows in counts})
        return Plot("lying_bars", title, WALL, "", series) if series else None

    return plot


def step_parts(figures: Figures) -> Plot | None:
    """Microseconds of a step by operator, the longest first, and what no operator accounts for."""
    series: dict[str, list[list[Any]]] = {}
    longest = {}
    for rows, operators in figures["operators"].items():
        parts = {name: values["us"] for name, values in operators.items()}
        gap = figures["rows"][rows]["gap_us"]
        parts |= {"gaps": gap} if gap else {}
        for name, us in parts.items():
            longest[name] = max(us, longest.get(name, 0.0))
        series[counted(rows)] = [[name, us] for name, us in parts.items()]
    for points in series.values():
        points.sort(key=lambda point: (point[0] == "gaps", -longest[point[0]]))
    if not any(series.values()):
        return None
    title = "Where a step's time goes"
    return Plot("lying_bars", title, "microseconds", "", series, digits=0)


def backends(key: str, x: str, title: str, digits: int) -> Callable[[Figures], Plot | None]:
    """One figure of every jit backend that ran."""

    def plot(figures: Figures) -> Plot | None:
        series = by_key(figures["backends"], {key: title})
        return Plot("lying_bars", title, x, "", series, digits=digits) if series else None

    return plot


def fewest(figures: Figures) -> str:
    """The row count of an ablation's plots."""
    return min(figures["baseline"], key=int)


def _spans(figures: Figures, title: str, steps: Mapping[str, tuple[float, float]]) -> Plot | None:
    """From one step time to another by switch; what costs more than the whole step is only named,
    since the others would be invisible beside it.
    """
    rows = fewest(figures)
    base = figures["baseline"][rows]["step_ms"]
    costs = {name: off - on for name, (on, off) in steps.items()}
    large = [name for name, cost in costs.items() if abs(cost) > base]
    drawn = [[name, *ends] for name, ends in steps.items() if name not in large]
    if not drawn:
        return None
    left_out = [f"{name} {costs[name]:+,.1f} ms" for name in large]
    note = f"not drawn: {', '.join(left_out)}" if large else ""
    x, marks = f"milliseconds of a step of {counted(rows)}", {"everything on": base}
    return Plot("spans", title, x, "", {"step": drawn}, note, digits=3, marks=marks)


def switches(figures: Figures) -> Plot | None:
    """Each switch alone turned off, the one worth most first."""
    rows = fewest(figures)
    found = {name: values[rows] for name, values in figures["switches"].items() if rows in values}
    steps = {name: (v["on_step_ms"], v["off_step_ms"]) for name, v in found.items()}
    order = sorted(steps, key=lambda name: steps[name][0] - steps[name][1])
    title = "What a switch is worth: each alone turned off"
    return _spans(figures, title, {name: steps[name] for name in order})


def waterfall(figures: Figures) -> Plot | None:
    """One switch after another turned off, in the record's order."""
    rows = fewest(figures)
    before, steps = figures["baseline"][rows]["step_ms"], {}
    for name, values in figures.get("cumulative", {}).items():
        after = values[rows]["off_step_ms"]
        steps[name], before = (before, after), after
    title = "What switches are worth: one after another turned off"
    return _spans(figures, title, steps)


PLOTS: dict[str, dict[str, Callable[[Figures], Plot | None]]] = {
    "decode": {"tokens_per_s": decoding_speed, "wall_fraction": decoding_share},
    "context_sweep": {
        "tokens_per_s": sweep("tokens_per_s", "tokens per second", "Decoding by context", None),
        "wall_fraction": sweep("wall_fraction", WALL, "Share of the wall by context", 1),
    },
    "verify_cost": {
        "step_ms": by_row_count("step_ms", "milliseconds", "Time of a step by rows", 2),
        "ratio": by_row_count("ratio", "ratio to one row", "A step beside one of one row", 3),
    },
    "prefill": {"tokens_per_s": prefill_speed, "matmul_fraction": prefill_share},
    "concurrency": {"tokens_per_s": streams},
    "kernel_bench": {
        "int4": kernel_shares("Int4 matrices", lambda name: name.startswith("int4")),
        "matmul": kernel_shares("Dense matrices", lambda name: name == "matmul"),
        "other_operators": kernel_shares("Other operators", lambda name: not is_large(name)),
    },
    "step_profile": {"step_us": step_parts},
    "compile_compare": {
        "step_ms": backends("step_ms", "milliseconds", "Time of a step", 3),
        "build_s": backends("build_s", "seconds", "Time until the first step is done", 1),
    },
    "ablation": {"switches": switches, "waterfall": waterfall},
}
