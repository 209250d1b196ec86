"""The definition, row by row in torch's own order."""

import torch
from torch import Tensor

from kernels.codes import encode
from kernels.define import variant
from kernels.hadamard import rotated
from kernels.rms_norm import rms_norm

FLOAT8_MAX = 448.0  # of e4m3
MUTATES = ("k_cache", "v_cache", "k_scale", "v_scale")


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., heads, d], cos and sin [..., rotary / 2] -> x with its first `rotary` dims turned.

    Each product is rounded to x's dtype before the sum.
    """
    half = cos.shape[-1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def as_cached(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a cache's dtype: clamped to +-448 and rounded to nearest even where it is float8."""
    if dtype == torch.float8_e4m3fn:
        x = x.clamp(-FLOAT8_MAX, FLOAT8_MAX)
    return x.to(dtype)


def store(cache: Tensor, scale: Tensor | None, index: Tensor, x: Tensor) -> None:
    """cache [kv_heads, capacity, ...] takes x [rows, kv_heads, d] at rows `index`, in place."""
    x = x.transpose(0, 1)
    if scale is not None:
        x, scales = encode(x, cache.dtype)
        scale.index_copy_(1, index, scales.to(scale.dtype))
    x = as_cached(x, cache.dtype)
    if cache.dtype == torch.float8_e4m3fn:
        cache, x = cache.view(torch.uint8), x.view(torch.uint8)  # index_copy_ has no float8
    cache.index_copy_(1, index, x)


def fake(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    kv_heads, d = k_cache.shape[0], q_norm.shape[0]
    heads = (qkv.shape[1] // d - 2 * kv_heads) // 2
    return qkv.new_empty(qkv.shape[0], heads, d), qkv.new_empty(qkv.shape[0], heads * d)


@variant("qk_rope_store", "reference", fake, MUTATES)
def qk_rope_store(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """qkv [rows, heads (2 d) + 2 kv_heads d] = per head [query | gate], then k, then v.

    q_norm and k_norm [d]; cos and sin [positions, rotary / 2]; pos int64 scalar. Overwritten, at
    rows pos .. pos + rows - 1: k_cache and v_cache [kv_heads, capacity, d] in qkv's dtype, float8
    e4m3 or int8, or uint8 [kv_heads, capacity, d / 2]; beside integers their scales, fp32
    [kv_heads, capacity]. Returns the queries [rows, heads, d], rotated as the keys are where codes
    have 4 bits (kernels/codes.py), and the gate [rows, heads d].
    """
    kv_heads, d = k_cache.shape[0], q_norm.shape[0]
    rows = qkv.shape[0]
    qg, k, v = qkv.split([qkv.shape[1] - 2 * kv_heads * d, kv_heads * d, kv_heads * d], -1)
    q, gate = qg.view(rows, -1, 2 * d).chunk(2, -1)
    index = pos + torch.arange(rows, device=pos.device)
    cos, sin = cos.index_select(0, index), sin.index_select(0, index)
    q = rotate(rms_norm(q, q_norm, eps), cos, sin)
    k = rotate(rms_norm(k.view(rows, kv_heads, d), k_norm, eps), cos, sin)
    store(k_cache, k_scale, index, k)
    store(v_cache, v_scale, index, v.view(rows, kv_heads, d))
    if k_cache.dtype == torch.uint8:
        q = rotated(q).to(q.dtype)
    return q, gate.clone(memory_format=torch.contiguous_format).view(rows, -1)
