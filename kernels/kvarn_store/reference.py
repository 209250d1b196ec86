"""The definition, in torch's own order."""

import torch
from torch import Tensor

from kernels.define import variant
from kernels.hadamard import rotated
from kernels.kvarn import RING, TILE, held
from kernels.precision import wide
from kernels.qk_rope_store.reference import rotate
from kernels.rms_norm import rms_norm

MUTATES = ("sink", "ring")


def fake(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    sink: Tensor,
    ring: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    _, kv_heads, _, d = sink.shape
    heads = (qkv.shape[1] // d - 2 * kv_heads) // 2
    dtype = wide(qkv[:0]).dtype
    return (
        qkv.new_empty(qkv.shape[0], heads, d, dtype=dtype),
        qkv.new_empty(qkv.shape[0], heads * d),
    )


@variant("kvarn_store", "reference", fake, MUTATES)
def kvarn_store(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    sink: Tensor,
    ring: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """qkv [rows, heads (2 d) + 2 kv_heads d] = per head [query | gate], then k, then v.

    q_norm and k_norm [d]; cos and sin [positions, rotary / 2]; pos int64 scalar. Overwritten are
    the rows' places in sink [2, kv_heads, 128, d] and ring [2, kv_heads, 256, d], keys ahead of
    values. Returns the rotated queries [rows, heads, d] in fp32 and the gate [rows, heads d].
    """
    _, kv_heads, _, d = sink.shape
    rows = qkv.shape[0]
    qg, k, v = qkv.split([qkv.shape[1] - 2 * kv_heads * d, kv_heads * d, kv_heads * d], -1)
    q, gate = qg.view(rows, -1, 2 * d).chunk(2, -1)
    index = pos + torch.arange(rows, device=pos.device)
    cos, sin = cos.index_select(0, index), sin.index_select(0, index)
    q = rotate(rms_norm(q, q_norm, eps), cos, sin)
    k = rotate(rms_norm(k.view(rows, kv_heads, d), k_norm, eps), cos, sin)
    write(k, v.view(rows, kv_heads, d), index, sink, ring)
    return rotated(q), gate.clone(memory_format=torch.contiguous_format).view(rows, -1)


def write(k: Tensor, v: Tensor, index: Tensor, sink: Tensor, ring: Tensor) -> None:
    """k and v [rows, kv_heads, d] at positions `index`, all within RING of each other."""
    x = held(rotated(torch.stack([k, v]).transpose(1, 2)), ring.dtype)
    first = (index < TILE).nonzero()[:, 0]
    later = (index >= TILE).nonzero()[:, 0]
    sink.index_copy_(2, index[first], x[:, :, first])
    ring.index_copy_(2, index[later] % RING, x[:, :, later])
