"""A vocabulary's logits: greedy, drawn from all of them, drawn from what cuts leave."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

SEED, POS = (12345, 2**32 - 1), 600


def cases(c: Widths) -> dict[str, Sizes]:
    cut = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}
    kinds = {"cut": cut, "greedy": {"temperature": 0.0}, "drawn": {"temperature": 1.0}}
    return {name: {"vocab": c.vocab, "ids": c.vocab, **kind} for name, kind in kinds.items()}


def inputs(
    draw: Draw,
    rows: int,
    vocab: int,
    ids: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> list[Any]:
    scalars = [draw.scalar(value) for value in (POS, temperature, top_k, top_p, min_p)]
    seed = torch.tensor(SEED, device=draw.device)
    cuts = top_k > 0 or top_p < 1 or min_p > 0
    return [draw(rows, vocab).mul_(3), *scalars, seed, ids, cuts]


def nbytes(logits: Tensor, *others: Any) -> int:
    return logits.nbytes + 8 * logits.shape[0]


BENCH = (Bench("sample", cases, inputs, nbytes),)
