"""Figures as PNG plots: `PLOTS` maps an experiment to its plots; others have tables only."""

import io
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from tr.report.draw import COLOURS, axes, curves, grouped_bars, lines, lying_bars, stacked_bars
from tr.report.kernels import by_rows, counted, fastest, is_large
from tr.report.tables import is_curve

WALL = "share of the read wall"


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
    figure, drawn_on = axes("step", "loss, nats", "Training loss")
    drawn_on.plot([int(step) for step in curve], list(curve.values()), color=COLOURS[0])
    drawn_on.set_yscale("log")
    return figure


def contexts(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Decoding by context, with what the wall would allow."""
    wall = figures["wall_gb_per_s"] * 1e9
    return {
        f"{int(context):,}": {**values, "wall_tokens_per_s": wall / values["bytes_per_step"]}
        for context, values in figures["contexts"].items()
    }


def decoding_speed(figures: Mapping[str, Any]) -> Figure | None:
    bars = {"tokens_per_s": "measured", "wall_tokens_per_s": "at the read wall"}
    title = "Raw decoding"
    return grouped_bars(contexts(figures), bars, "context, tokens", "tokens per second", title, 0)


def decoding_share(figures: Mapping[str, Any]) -> Figure | None:
    title = f"Raw decoding: share of a wall of {figures['wall_gb_per_s']:,.0f} GB/s"
    bars = {"wall_fraction": WALL}
    return grouped_bars(contexts(figures), bars, "context, tokens", WALL, title, 3)


def verify_ms(figures: Mapping[str, Any]) -> Figure | None:
    title, bars = "Time of a step by rows", {"step_ms": "step"}
    return grouped_bars(figures["rows"], bars, "rows", "milliseconds", title, 2)


def verify_ratio(figures: Mapping[str, Any]) -> Figure | None:
    title, bars = "Cost of a step beside one of one row", {"ratio": "ratio"}
    return grouped_bars(figures["rows"], bars, "rows", "ratio to one row", title, 3)


def _shares(families: Mapping[str, Mapping[str, float]], title: str) -> Figure | None:
    counts = sorted({rows for values in families.values() for rows in values}, key=int)
    bars = {rows: counted(rows) for rows in counts}
    return lying_bars(families, bars, WALL, title, 2)


def kernel_shares(
    title: str, chosen: Callable[[str], bool]
) -> Callable[[Mapping[str, Any]], Figure | None]:
    """A plot of some operators, each by its fastest variant: share of the wall by case and rows."""

    def plot(figures: Mapping[str, Any]) -> Figure | None:
        families: dict[str, dict[str, float]] = {}
        for operator, variants in figures.items():
            if isinstance(variants, Mapping) and chosen(operator):
                variant = fastest(variants)
                for name, shares in by_rows(variants[variant]).items():
                    families[f"{operator}.{variant}: {name}"] = shares
        return _shares(families, title)

    return plot


def step_parts(figures: Mapping[str, Any]) -> Figure | None:
    """Microseconds of a step by operator, the longest first, and what no operator accounts for."""
    bars: dict[str, dict[str, float]] = {}
    for rows, step in figures["rows"].items():
        parts = {name: values["us"] for name, values in figures["operators"][rows].items()}
        bars[counted(rows)] = {**parts, "gaps": step["gap_us"]}
    totals: dict[str, float] = {}
    for parts in bars.values():
        for name, us in parts.items():
            totals[name] = totals.get(name, 0.0) + us
    names = sorted((name for name in totals if name != "gaps"), key=lambda name: -totals[name])
    return stacked_bars(bars, [*names, "gaps"], "microseconds", "Where a step's time goes")


def backends(key: str, x: str, title: str, digits: int) -> Callable[..., Figure | None]:
    """A plot of one figure of every jit backend that ran."""

    def plot(figures: Mapping[str, Any]) -> Figure | None:
        found = figures["backends"].items()
        ran = {name: values for name, values in found if values[key] is not None}
        return lying_bars(ran, {key: key}, x, title, digits)

    return plot


def by_strategy(key: str, x: str, title: str, digits: int) -> Callable[..., Figure | None]:
    """A plot of one figure of every strategy and family."""

    def plot(figures: Mapping[str, Any]) -> Figure | None:
        found = figures["strategies"]
        families = {
            family: {name: values[family][key] for name, values in found.items()}
            for family in next(iter(found.values()))
        }
        return lying_bars(families, {name: name for name in found}, x, title, digits)

    return plot


def accepted_by_strategy(figures: Mapping[str, Any]) -> Figure | None:
    """Every strategy's curve, the mean of its families'."""
    means: dict[str, dict[str, list[float]]] = {}
    for name, families in figures["strategies"].items():
        each = [values["accepted_by_position"] for values in families.values()]
        length = max(map(len, each))
        padded = [[*shares, *[0.0] * (length - len(shares))] for shares in each]
        means[name] = {"accepted": [sum(at) / len(at) for at in zip(*padded, strict=True)]}
    x, y = "position in the draft", "share of steps that accept it"
    return lines(means, "accepted", x, y, "Acceptance by position, mean of the families")


def steps_by_strategy(figures: Mapping[str, Any]) -> Figure | None:
    steps = {
        f"{name}: {kind}": values
        for name, kinds in figures["steps"].items()
        for kind, values in kinds.items()
    }
    title = "Time of a step by strategy and rows"
    return lying_bars(steps, {"step_ms": "step"}, "milliseconds", title, 2)


def acceptance_curve(figures: Mapping[str, Any]) -> Figure | None:
    keys = ("tokens_per_step", "least_tokens_per_step", "most_tokens_per_step")
    series = {
        name: {
            int(length): [values[key] for key in keys]
            for length, values in lengths.items()
            if values["tokens_per_step"] is not None
        }
        for name, lengths in figures["strategies"].items()
    }
    title = "Tokens per step by context; the band spans the places in the text"
    return curves(series, "context, tokens", "tokens per step", title)


def accepted_by_context(figures: Mapping[str, Any]) -> Figure | None:
    """The curves of the strategy that drafts most, one per context."""

    def most(name: str) -> int:
        return max(len(v["accepted_by_position"]) for v in figures["strategies"][name].values())

    name = max(figures["strategies"], key=most)
    lengths = {f"{int(n):,} tokens": v for n, v in figures["strategies"][name].items()}
    x, y = "position in the draft", "share of steps that accept it"
    return lines(lengths, "accepted_by_position", x, y, f"Acceptance by context, draft {name}")


def coverage(figures: Mapping[str, Any]) -> Figure | None:
    names = {"counted_coverage": "the most frequent", "first_coverage": "the first"}
    series = {
        label: {
            int(size): [values[key]]
            for size, values in figures["coverage"].items()
            if values[key] is not None
        }
        for key, label in names.items()
    }
    title = "Tokens of held-out answers that a draft's list covers"
    return curves(series, "tokens on the list", "share covered", title)


PLOTS: dict[str, dict[str, Callable[[Mapping[str, Any]], Figure | None]]] = {
    "dflash2_verify": {
        "tokens_per_step": tokens_per_step,
        "accepted_by_position": accepted_by_position,
        "tokens_per_s": tokens_per_s,
    },
    "draft_compare": {
        "tokens_per_s": by_strategy("tokens_per_s", "tokens per second", "Decoding speed", 0),
        "tokens_per_step": by_strategy("tokens_per_step", "tokens per step", "Tokens per step", 2),
        "sampled_tokens_per_step": by_strategy(
            "sampled_tokens_per_step", "tokens per step", "Tokens per step, sampled", 2
        ),
        "accepted_by_position": accepted_by_strategy,
        "step_ms": steps_by_strategy,
    },
    "accept_curve": {
        "tokens_per_step": acceptance_curve,
        "accepted_by_position": accepted_by_context,
    },
    "draft_vocab": {"coverage": coverage},
    "train_tiny": {"losses": losses},
    "train_draft": {"losses": losses},
    "decode": {"tokens_per_s": decoding_speed, "wall_fraction": decoding_share},
    "verify_cost": {"step_ms": verify_ms, "ratio": verify_ratio},
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
}


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def plots(record: Mapping[str, Any]) -> dict[str, bytes]:
    """PNG bytes by name; a plot without data is left out."""
    drawn = {n: f(record["figures"]) for n, f in PLOTS.get(record["experiment"], {}).items()}
    return {name: png(figure) for name, figure in drawn.items() if figure is not None}
