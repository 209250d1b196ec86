"""How well a model predicts a text: nats of each token, in windows that share their beginnings."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tr.decode.step import Model, cuts
from tr.evals import intervals
from tr.model import text

ROWS = 256  # whose logits are made at once


@dataclass(frozen=True)
class Window:
    """Tokens [start, end) are read; those from `scored` on are judged, each by all before it."""

    start: int
    scored: int
    end: int


@dataclass
class Judged:
    """Sums over one window: `nats` of `tokens` judged tokens, which are `nbytes` of text."""

    nats: float
    tokens: int
    nbytes: int


def windows(tokens: int, window: int, stride: int) -> Iterator[Window]:
    """Windows over a text whose first token is given: every later one is judged once.

    Each window judges `stride` tokens, the first one all of its own; so no token but the first
    window's is judged by fewer than window - stride others.
    """
    if not 1 <= stride < window:
        raise ValueError(
            f"params.stride: expected 1 .. {window - 1}, below params.window, got {stride}"
        )
    scored = 1
    while scored < tokens:
        end = min(tokens, window if scored == 1 else scored + stride)
        yield Window(max(0, end - window), scored, end)
        scored = end


@torch.inference_mode()
def nats(model: Model, ids: Sequence[int], scored: int) -> Tensor:
    """Of ids[scored:], each by all that stand before it; float64 [len(ids) - scored].

    Read by the operators and the cache format of decoding's prefill; the softmax is in float64.
    """
    tokens = torch.tensor(ids, device=model.params.norm.device)
    state = text.init_state(model.params, len(ids), 1)
    ends, hidden = cuts(0, len(ids) - 1, model.chunk), []
    for start, end in zip([0, *ends], ends, strict=False):
        x, _, state = text.prefill(model.params, state, tokens[start:end], model.ops)
        hidden.append(x)
    found = []
    wanted = torch.cat(hidden)[scored - 1 :]
    for rows, after in zip(wanted.split(ROWS), tokens[scored:].split(ROWS), strict=True):
        logits = model.params.head.sequence(rows, model.ops)[:, : model.ids].double()
        found.append(logits.logsumexp(-1) - logits.gather(1, after[:, None])[:, 0])
    return torch.cat(found)


def figures(judged: Sequence[Judged], seed: int = 0) -> dict[str, Any]:
    """Perplexity by token and bits by byte; intervals by a bootstrap over windows."""
    loss = [j.nats for j in judged]
    found: dict[str, Any] = {}
    for name, under in (
        ("bits_per_byte", [j.nbytes * math.log(2) for j in judged]),
        ("nats_per_token", [float(j.tokens) for j in judged]),
    ):
        low, high = intervals.ratio(loss, under, seed) or (None, None)
        found |= {name: sum(loss) / sum(under), f"{name}_low": low, f"{name}_high": high}
    for end in ("", "_low", "_high"):
        value = found[f"nats_per_token{end}"]
        found[f"perplexity{end}"] = None if value is None else math.exp(value)
    counts = {"tokens": sum(j.tokens for j in judged), "bytes": sum(j.nbytes for j in judged)}
    return {**found, **counts, "windows": len(judged)}
