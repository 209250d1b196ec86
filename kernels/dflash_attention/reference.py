"""The definition: the whole ring and the block's own keys under one mask."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.qk_rope_store.reference import rotate
from kernels.rms_norm.reference import rms_norm_plain


def fake(
    qkv: Tensor,
    context: Tensor,
    layer: int,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    count: Tensor,
    k_ring: Tensor,
    v_ring: Tensor,
    window: int,
    causal: bool,
    eps: float,
) -> Tensor:
    kv_heads, _, d = k_ring.shape
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] - 2 * kv_heads * d)


@variant("dflash_attention", "reference", fake, ("k_ring", "v_ring"))
def dflash_attention(
    qkv: Tensor,
    context: Tensor,
    layer: int,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    count: Tensor,
    k_ring: Tensor,
    v_ring: Tensor,
    window: int,
    causal: bool,
    eps: float,
) -> Tensor:
    """qkv [rows, (heads + 2 kv_heads) d] = [q | k | v] of the block -> [rows, heads d].

    context [new, layers 2 kv_heads d] holds [k | v] of each layer for positions pos - count, ...;
    `layer` is this one. Norms [d]; cos and sin [positions, d / 2]; pos and count int64 scalars.
    Overwritten: k_ring and v_ring [kv_heads, size, d], at the first `count` of those positions.
    """
    rows, (kv_heads, size, d) = len(qkv), k_ring.shape
    width = 2 * kv_heads * d
    device = qkv.device

    def turned(x: Tensor, gain: Tensor, at: Tensor) -> Tensor:
        """x [n, heads d] at positions `at` -> [heads, n, d]."""
        x = rms_norm_plain(x.unflatten(-1, (-1, d)), gain, eps)
        at = at.clamp(0, len(cos) - 1)  # rejected rows may lie past the tables
        return rotate(x, cos.index_select(0, at), sin.index_select(0, at)).transpose(0, 1)

    new = torch.arange(len(context), device=device)
    at = pos - count + new
    k, v = context[:, layer * width : (layer + 1) * width].chunk(2, -1)
    k, v = turned(k, k_norm, at), v.unflatten(-1, (-1, d)).transpose(0, 1)
    slot = at % size
    for ring, x in ((k_ring, k), (v_ring, v)):
        held = ring.index_select(1, slot)
        ring.index_copy_(1, slot, torch.where((new < count)[:, None], x, held))

    q, k, v = qkv.split([qkv.shape[1] - width, width // 2, width // 2], -1)
    row = torch.arange(rows, device=device)
    at = pos + row
    q, k = turned(q, q_norm, at), turned(k, k_norm, at)
    slot = torch.arange(size, device=device)
    held = pos - 1 - (pos - 1 - slot) % size  # the position of each row of the ring
    seen = (held >= 0) & (held > at[:, None] - window)
    own = row <= row[:, None] if causal else torch.ones_like(row <= row[:, None])
    group = len(q) // kv_heads
    k = torch.cat([k_ring, k], 1).repeat_interleave(group, 0)
    v = torch.cat([v_ring, v.unflatten(-1, (-1, d)).transpose(0, 1)], 1)
    mask = torch.cat([seen, own], -1)
    y = F.scaled_dot_product_attention(
        q[None], k[None], v.repeat_interleave(group, 0)[None], attn_mask=mask
    )
    return y[0].transpose(0, 1).flatten(1)
