"""Plots of what fewer bits cost: KL divergence against bits per weight and bytes per token."""

from collections.abc import Callable, Mapping
from typing import Any

from tr.report.plot import Plot

Figures = Mapping[str, Any]
KL = "mean KL divergence, nats"


def _places(candidates: Mapping[str, Mapping[str, Any]], x: str) -> dict[str, list[list[Any]]]:
    """A point per candidate that has both numbers; a logarithmic axis has no zero."""
    return {
        name: [[values[x], values["kl_mean"]]]
        for name, values in candidates.items()
        if values.get(x) is not None and values.get("kl_mean")
    }


def kl_by_bits(figures: Figures) -> Plot | None:
    series = _places(figures["candidates"], "bits_per_weight")
    if not series:
        return None
    title = "What fewer bits cost"
    return Plot("points", title, "bits per weight", KL, series, y_scale="log")


def kl_by_cache(figures: Figures) -> Plot | None:
    """At the longest context."""
    longest = max(figures["contexts"], key=int)
    series = _places(figures["contexts"][longest], "bytes_per_token")
    if not series:
        return None
    title = f"What a narrower cache costs at {int(longest):,} tokens"
    return Plot("points", title, "bytes per token and attention layer", KL, series, y_scale="log")


PLOTS: dict[str, dict[str, Callable[[Figures], Plot | None]]] = {
    "quality": {"kl_by_bits": kl_by_bits},
    "kv_quality": {"kl_by_bytes": kl_by_cache},
}
