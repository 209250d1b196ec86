"""The definition: row by row, with a sort where candidates are cut."""

import torch
from torch import Tensor

from kernels.define import variant

MASK = 0xFFFFFFFF


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers (held in int64) that spreads every bit over the word."""
    x = x & MASK
    x = x ^ (x >> 16)
    x = (x * 0x21F0AAAD) & MASK
    x = x ^ (x >> 15)
    x = (x * 0x735A2D97) & MASK
    return x ^ (x >> 15)


def gumbel(seed: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, fp32, for each of `tokens`; seed int64 [2], position int64 scalar."""
    first = mix(seed[0] ^ mix(position))
    second = mix(seed[1] ^ mix(position + 1))
    bits = mix(mix(first ^ tokens) + second)
    v = ((bits.float() + 0.5) / 2**32).clamp(max=1 - 2**-24)
    return -torch.log(-torch.log1p(-v))


def argmax_lowest(scores: Tensor) -> Tensor:
    """Index of the maximum of scores [n], the lowest one among equals."""
    return (scores == scores.max()).int().argmax()


def survivors(scores: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Ids that stay, most likely first; scores [vocab] are logits over temperature."""
    ordered, ids = scores.sort(descending=True, stable=True)
    keep = len(ids) if top_k == 0 else min(top_k, len(ids))
    if min_p > 0:
        keep = min(keep, int(((ordered - ordered[0]).exp() >= min_p).sum()))
    keep = max(keep, 1)
    probability = ordered[:keep].softmax(0)
    stay = probability.cumsum(0) - probability < top_p
    if top_p >= 1:  # a rounded sum may reach 1 before the last candidate
        stay[:] = True
    stay[0] = True
    return ids[:keep][stay]


def fake(
    logits: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    ids: int,
    cuts: bool = True,
) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


@variant("sample", "reference", fake)
def sample(
    logits: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    ids: int,
    cuts: bool = True,
) -> Tensor:
    """logits [rows, vocab] -> int64 [rows]; row i's token will stand at position + i.

    Scalars as tensors: temperature (0: greedy), top_k (0: all), top_p, min_p; seed int64 [2].
    Ids at and past `ids` are padding of the matrix and never drawn. cuts=False says that top_k,
    top_p and min_p take nothing away and need not be looked at.
    """
    heat = float(temperature)
    if heat == 0:
        return torch.stack([argmax_lowest(row[:ids]) for row in logits])
    k, p, m = int(top_k), float(top_p), float(min_p)
    whole = not cuts or (k == 0 and p >= 1 and m <= 0)
    out = []
    for i, row in enumerate(logits):
        scores = row[:ids].float() / heat
        stay = None if whole else survivors(scores, k, p, m).sort().values
        tokens = torch.arange(ids, device=row.device) if stay is None else stay
        noisy = (scores if stay is None else scores[stay]) + gumbel(seed, position + i, tokens)
        out.append(tokens[argmax_lowest(noisy)])
    return torch.stack(out)
