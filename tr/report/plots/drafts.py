"""Plots of speculation: tokens per second and per step, acceptance, the drafts' training."""

from collections.abc import Callable, Mapping
from typing import Any

from tr.report.plot import Plot
from tr.report.plots.series import by_key, by_name, by_number, by_position
from tr.report.tables import is_curve

Figures = Mapping[str, Any]
POSITION, ACCEPTED = "position in the draft", "share of steps that accept it"


def accepted(series: Any, title: str) -> Plot | None:
    if not series:
        return None
    return Plot("curves", title, POSITION, ACCEPTED, series, least=0, most=1.02)


def tokens_per_step(figures: Figures) -> Plot | None:
    families, suffix = figures["families"], "tokens_per_step"
    keys = (key for values in families.values() for key in values if key.endswith(suffix))
    bars = {key: key.removesuffix(suffix).strip("_") or "greedy" for key in keys}
    series, title = by_key(families, bars), f"Tokens per step, draft {figures['draft']}"
    return Plot("bars", title, "text", "tokens per step", series) if series else None


def accepted_by_position(figures: Figures) -> Plot | None:
    series = by_position(figures["families"], "accepted_by_position")
    return accepted(series, f"Acceptance by position, draft {figures['draft']}")


def tokens_per_s(figures: Figures) -> Plot | None:
    bars = {f"{name}_tokens_per_s": name for name in ("raw", "speculative")}
    series, title = by_key(figures["families"], bars), f"Decoding speed, draft {figures['draft']}"
    return Plot("bars", title, "text", "tokens per second", series, digits=0) if series else None


def by_strategy(key: str, y: str, title: str) -> Callable[[Figures], Plot | None]:
    """A plot of one figure of every strategy and family."""

    def plot(figures: Figures) -> Plot | None:
        series = by_name(figures["strategies"], key)
        return Plot("bars", title, "text", y, series) if series else None

    return plot


def accepted_by_strategy(figures: Figures) -> Plot | None:
    """Every strategy's curve, the mean of its families'; a shorter list ends in zeros."""
    means: dict[str, dict[str, list[float]]] = {}
    for name, families in figures["strategies"].items():
        each = [values["accepted_by_position"] for values in families.values()]
        length = max(map(len, each))
        padded = [[*shares, *[0.0] * (length - len(shares))] for shares in each]
        means[name] = {"accepted": [sum(at) / len(at) for at in zip(*padded, strict=True)]}
    series = by_position(means, "accepted")
    return accepted(series, "Acceptance by position, mean of the texts")


def steps_by_strategy(figures: Figures) -> Plot | None:
    found = figures.get("steps", {}).items()
    steps = [
        [f"{name}: {kind}", values["step_ms"]]
        for name, kinds in found
        for kind, values in kinds.items()
    ]
    title = "Time of a step by strategy and rows"
    return Plot("lying_bars", title, "milliseconds", "", {"step": steps}) if steps else None


def acceptance_curve(figures: Figures) -> Plot | None:
    keys = ("tokens_per_step", "least_tokens_per_step", "most_tokens_per_step")
    series = by_number(figures["strategies"], *keys)
    if not series:
        return None
    title, note = "Tokens per step by context", "band: places in the text"
    x, y = "context, tokens", "tokens per step"
    return Plot("curves", title, x, y, series, note, x_scale="doublings")


def accepted_by_context(figures: Figures) -> Plot | None:
    """The curves of the strategy that drafts most, one per context."""

    def most(name: str) -> int:
        return max(len(v["accepted_by_position"]) for v in figures["strategies"][name].values())

    name = max(figures["strategies"], key=most)
    lengths = {f"{int(n):,} tokens": v for n, v in figures["strategies"][name].items()}
    series = by_position(lengths, "accepted_by_position")
    return accepted(series, f"Acceptance by context, draft {name}")


def coverage(figures: Figures) -> Plot | None:
    keys = {"counted_coverage": "the most frequent", "first_coverage": "the first"}
    series = {
        label: points
        for key, label in keys.items()
        for points in by_number({"": figures["coverage"]}, key).values()
    }
    if not series:
        return None
    title = "Tokens of held-out answers that a draft's list covers"
    x, y = "tokens on the list", "share covered"
    return Plot("curves", title, x, y, series, x_scale="doublings")


def losses(figures: Figures) -> Plot | None:
    """Loss over steps; None where a run was too short to make a curve."""
    curve = figures.get("losses_nats", {})
    if not is_curve(curve):
        return None
    series = {"loss": [[int(step), loss] for step, loss in curve.items()]}
    return Plot("curves", "Training loss", "step", "loss, nats", series, y_scale="log")


PLOTS: dict[str, dict[str, Callable[[Figures], Plot | None]]] = {
    "dflash2_verify": {
        "tokens_per_step": tokens_per_step,
        "accepted_by_position": accepted_by_position,
        "tokens_per_s": tokens_per_s,
    },
    "draft_compare": {
        "tokens_per_s": by_strategy("tokens_per_s", "tokens per second", "Decoding speed"),
        "tokens_per_step": by_strategy("tokens_per_step", "tokens per step", "Tokens per step"),
        "sampled_tokens_per_step": by_strategy(
            "sampled_tokens_per_step", "tokens per step", "Tokens per step, sampled"
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
}
