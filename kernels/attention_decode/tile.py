"""Blocks of 512 keys on an absolute grid, always 16 query rows, merged by running maxima.

A block that lies wholly after a row's position changes nothing for it, to the bit (weight exp(-inf)
is 0, factor exp(0) is 1), so a row does not notice how many rows or keys the call has. Cache rows
past the live ones are read and masked: they must be finite, which zero-filled buffers are.
"""

import torch
from torch import Tensor

from kernels.attention_decode.reference import fake
from kernels.codes import numbers
from kernels.define import Support, variant
from kernels.hadamard import unrotated
from kernels.matmul.tile import TILE, tile
from kernels.precision import wide

BLOCK = 512
SUPPORT = Support(multiples={"capacity": BLOCK, "d_head": 32})


@variant("attention_decode", "tile", fake, support=SUPPORT)
def attention_decode(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """As the reference; the caches' capacity must be a multiple of 512 and d one of 32."""
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    if capacity % BLOCK or d % 32:
        raise ValueError(
            f"attention_decode: tile needs a capacity that is a multiple of {BLOCK} and d one of"
            f" 32, got {capacity} and {d}; use kernel.attention_decode=reference"
        )
    group = heads // kv_heads
    first = int(pos)
    query = (wide(tile(q)) * d**-0.5).view(TILE, kv_heads, group, d)
    query = query.permute(1, 2, 0, 3).reshape(kv_heads, group * TILE, d)  # [kv, (group row), d]
    last = torch.arange(first, first + TILE, device=q.device)  # the last key each row sees
    last = last.repeat(group)[:, None]
    top = query.new_full((kv_heads, group * TILE, 1), -torch.inf)
    total = query.new_zeros(kv_heads, group * TILE, 1)
    out = torch.zeros_like(query)
    for start in range(0, first + rows, BLOCK):
        block = slice(start, start + BLOCK)
        k, v = (_values(cache[:, block], query.dtype) for cache in (k_cache, v_cache))
        keys = torch.arange(start, start + BLOCK, device=q.device)
        scores = torch.bmm(query, k.transpose(1, 2))
        if k_scale is not None:
            scores *= k_scale[:, None, block]
        scores.masked_fill_(keys > last, -torch.inf)
        peak = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = (scores - peak).exp_()
        keep = (top - peak).exp_()
        total = total * keep + weights.sum(-1, keepdim=True)
        if v_scale is not None:
            weights *= v_scale[:, None, block]
        out = out * keep + torch.bmm(weights, v)
        top = peak
    a = (out / total).view(kv_heads, group, TILE, d).permute(2, 0, 1, 3)[:rows]
    a = unrotated(a) if k_cache.dtype == torch.uint8 else a
    return a.reshape(rows, heads * d).to(gate.dtype) * gate.sigmoid()


def _values(cache: Tensor, dtype: torch.dtype) -> Tensor:
    """A block's numbers ahead of their scales."""
    return wide(cache) if cache.is_floating_point() else numbers(cache, dtype)
