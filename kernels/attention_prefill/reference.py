"""The definition: a library's attention where one span holds all keys, else the sums themselves."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.precision import wide

ALL, BEFORE, BEHIND = range(3)  # which keys up to its own a row sees: see the operator
MUTATES = ("out", "mass")


def fake(
    q: Tensor,
    gate: Tensor,
    k: Tensor,
    v: Tensor,
    pos: int,
    start: int,
    out: Tensor | None = None,
    mass: Tensor | None = None,
    begins: bool = True,
    ends: bool = True,
    side: int = ALL,
    tile: int = 1,
    lag: int = 0,
) -> Tensor:
    return q.new_empty(len(q) if ends else 0, q.shape[1] * q.shape[2])


@variant("attention_prefill", "reference", fake, mutates=MUTATES)
def attention_prefill(
    q: Tensor,
    gate: Tensor,
    k: Tensor,
    v: Tensor,
    pos: int,
    start: int,
    out: Tensor | None = None,
    mass: Tensor | None = None,
    begins: bool = True,
    ends: bool = True,
    side: int = ALL,
    tile: int = 1,
    lag: int = 0,
) -> Tensor:
    """q, gate [tokens, heads, d] of positions pos, pos + 1, ..; k, v [kv_heads, keys, d] of those
    from `start` on; keys behind the last row's own are not read.

    `begins` and `ends` say which spans are a chunk's first and last. A span that is not both needs
    out [tokens, heads, d] and mass [tokens, heads, 2] (peak, total), fp32 or with q fp64, and
    overwrites them: they carry the sums from span to span of one variant.
    Gives y [tokens, heads d] with the last span, [0, heads d] with others.
    """
    if begins and ends and side == ALL and start == 0:
        a = causal(
            q.transpose(0, 1)[None], k[None, :, : pos + len(q)], v[None, :, : pos + len(q)], pos
        )
        return a[0].transpose(0, 1).flatten(1) * gate.flatten(1).sigmoid()
    heads, kv_heads = q.shape[1], k.shape[0]
    p = pos + torch.arange(len(q), device=q.device)
    edge = (p - lag).clamp(min=0) // tile * tile
    low = edge if side == BEHIND else torch.zeros_like(p)
    high = torch.minimum(edge, p + 1) if side == BEFORE else p + 1
    j = start + torch.arange(k.shape[1], device=q.device)
    seen = (j >= low[:, None]) & (j < high[:, None])  # [tokens, keys]
    query = (wide(q) * q.shape[2] ** -0.5).transpose(0, 1).unflatten(0, (kv_heads, -1))
    scores = query @ wide(k)[:, None].transpose(2, 3)  # [kv_heads, group, tokens, keys]
    scores = scores.masked_fill(~seen, -torch.inf).flatten(0, 1).transpose(0, 1)
    before = scores.new_full((len(q), heads), -torch.inf)
    total, sums = torch.zeros_like(before), torch.zeros_like(wide(q))
    if not begins:
        assert out is not None and mass is not None
        before, total, sums = mass[..., 0], mass[..., 1], out
    peak = torch.maximum(before, scores.amax(-1))
    base = torch.where(peak == -torch.inf, 0.0, peak)  # nothing seen so far
    weights = (scores - base[..., None]).exp()
    keep = (before - base).exp()
    values = weights.transpose(0, 1).unflatten(0, (kv_heads, -1)) @ wide(v)[:, None]
    total = total * keep + weights.sum(-1)
    sums = sums * keep[..., None] + values.flatten(0, 1).transpose(0, 1)
    if ends:
        a = (sums / total[..., None]).to(q.dtype)
        return a.flatten(1) * gate.flatten(1).sigmoid()
    assert out is not None and mass is not None
    out.copy_(sums)
    mass.copy_(torch.stack([peak, total], -1))
    return q.new_empty(0, heads * q.shape[2])


def causal(q: Tensor, k: Tensor, v: Tensor, before: int) -> Tensor:
    """Attention of q [batch, heads, tokens, d] whose first token has `before` keys ahead of it."""
    tokens, keys = q.shape[2], k.shape[2]
    if not before or tokens == 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
    seen = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).tril(before)
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
