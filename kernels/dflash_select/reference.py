"""The definitions: a stable sort, and the path walked row by row."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.precision import wide
from kernels.sample.reference import gumbel


def fake_top(logits: Tensor, ids: int, top: int) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return logits.new_empty(rows, top), logits.new_empty(rows, top, dtype=torch.int64)


@variant("dflash_top", "reference", fake_top)
def dflash_top(logits: Tensor, ids: int, top: int) -> tuple[Tensor, Tensor]:
    """logits [rows, vocab] -> the `top` best of the first `ids`, best first, and their int64 ids.

    Equal logits come by their ids. `ids` is at least `top`.
    """
    scores, best = logits[:, :ids].sort(dim=-1, descending=True, stable=True)
    return scores[:, :top].clone(), best[:, :top].clone()


def fake_select(
    ahead: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    best: Tensor,
    scores: Tensor,
    anchor: Tensor,
    pos: Tensor,
    temperature: Tensor,
    seed: Tensor,
    noise: bool,
    broken: int,
) -> Tensor:
    return torch.empty_like(best[:, 0])


@variant("dflash_select", "reference", fake_select)
def dflash_select(
    ahead: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    best: Tensor,
    scores: Tensor,
    anchor: Tensor,
    pos: Tensor,
    temperature: Tensor,
    seed: Tensor,
    noise: bool,
    broken: int,
) -> Tensor:
    """ahead [rows, rank], codebooks [vocab, rank], candidates best int64 and scores [rows, n].

    anchor and pos int64 scalars, temperature fp32, seed int64 [2]. Row i's token, of int64 [rows],
    will stand at pos + 1 + i. With `noise` the temperature times that position's noise is added.
    `broken` stands for a row whose best score is no finite number: `max` passes NaN on.
    """
    successors = F.embedding(best, successor)  # [rows, n, rank]
    drawn = wide(scores)
    if noise:
        at = pos + 1 + torch.arange(len(best), device=best.device)
        drawn = drawn + temperature * gumbel(seed, at[:, None], best)
    path, won, token = [], [], anchor[None]
    for i in range(len(best)):
        key = predecessor.index_select(0, token)[0] * ahead[i]
        score, pick = (drawn[i] + (successors[i] @ key).to(drawn.dtype)).max(0, keepdim=True)
        token = best[i].index_select(0, pick)
        path.append(token)
        won.append(score)
    return torch.where(torch.cat(won).isfinite(), torch.cat(path), broken)
