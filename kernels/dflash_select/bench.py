"""A vocabulary's logits, and the released draft's selector over seven rows of candidates."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

SEED, POS = (12345, 2**32 - 1), 600
RANK, TOP = 256, 16


def top_cases(c: Widths) -> dict[str, Sizes]:
    return {"vocab": {"vocab": c.vocab, "ids": c.vocab, "top": TOP}}


def top_inputs(draw: Draw, rows: int, vocab: int, ids: int, top: int) -> list[Any]:
    return [draw(rows, vocab), ids, top]


def cases(c: Widths) -> dict[str, Sizes]:
    kinds = {"greedy": False, "drawn": True}
    return {
        name: {"vocab": c.vocab, "rank": RANK, "n": TOP, "noise": noise}
        for name, noise in kinds.items()
    }


def inputs(draw: Draw, rows: int, vocab: int, rank: int, n: int, noise: bool) -> list[Any]:
    best = torch.stack([torch.randperm(vocab)[:n] for _ in range(rows)]).to(draw.device)
    seed = torch.tensor(SEED, device=draw.device)
    books = [draw(vocab, rank).mul_(rank**-0.5) for _ in range(2)]
    scalars = [draw.scalar(vocab - 1), draw.scalar(POS), draw.scalar(0.7)]
    return [draw(rows, rank), *books, best, draw(rows, n), *scalars, seed, noise, -1]


def top_nbytes(logits: Tensor, ids: int, top: int) -> int:
    rows = logits.shape[0]
    return rows * (ids + top) * logits.element_size() + rows * top * 8


def nbytes(
    ahead: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    best: Tensor,
    scores: Tensor,
    *others: Any,
) -> int:
    """Rows of both codebooks for every candidate, candidates in, a token a row out."""
    rows, n = best.shape
    read = 2 * rows * n * predecessor.shape[1] * predecessor.element_size()
    return read + ahead.nbytes + best.nbytes + scores.nbytes + 8 * rows


BENCH = (
    Bench("dflash_top", top_cases, top_inputs, top_nbytes, lambda out: out[:1]),
    Bench("dflash_select", cases, inputs, nbytes),
)
