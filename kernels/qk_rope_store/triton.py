"""One program per row and head: of queries, which also moves the gate, or of keys and values."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.codes import encoded, format_of
from kernels.define import variant
from kernels.gpu import (
    SUPPORT,
    check,
    dependent_launch,
    let_next_start,
    same_dtype,
    wait_for_inputs,
)
from kernels.hadamard import rotation
from kernels.qk_rope_store.reference import MUTATES, fake
from kernels.rounding import float8_codes, rounded


@triton.jit
def _unit(x_ptr, weight_ptr, col, mask, rstd):
    """Columns `col` of a normed head, rounded."""
    x = tl.load(x_ptr + col, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    return rounded(x * rstd * (1.0 + gain), x_ptr.dtype.element_ty)


@triton.jit
def normed_turned(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, col, eps, D: tl.constexpr, HALF: tl.constexpr
):
    """One head: turn(rms_norm(x)) [D], each product rounded."""
    dtype = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + col).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / D + eps)
    turns = col < 2 * HALF
    low = col < HALF
    j = tl.where(low, col, col - HALF)
    cos = tl.load(cos_ptr + j, mask=turns, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + j, mask=turns, other=0.0).to(tl.float32)
    own = _unit(x_ptr, weight_ptr, col, col >= 0, rstd)
    other = _unit(x_ptr, weight_ptr, tl.where(low, col + HALF, col - HALF), turns, rstd)
    straight = rounded(own * cos, dtype)
    across = rounded(other * sin, dtype)
    turned = rounded(tl.where(low, straight - across, straight + across), dtype)
    return tl.where(turns, turned, own)


@triton.jit
def _put(cache_ptr, scale_ptr, at, x, col, room, D: tl.constexpr, FORMAT: tl.constexpr):
    """One head [D] into row `at` of a cache of all heads, in its format, where there is room."""
    mask = col < tl.where(room, D, 0)
    if FORMAT == "int8" or FORMAT == "int4":
        codes, scale = encoded(x, col, D, FORMAT)
        tl.store(scale_ptr + at, scale, mask=room)
        if FORMAT == "int8":
            tl.store(cache_ptr + at * D + col, codes.to(tl.int8), mask=mask)
        else:
            pair = codes | (tl.gather(codes, col ^ 1, 0) << 4)
            even = mask & ((col & 1) == 0)
            tl.store(cache_ptr + at * (D // 2) + col // 2, pair.to(tl.uint8), mask=even)
    elif FORMAT == "float8":
        tl.store(cache_ptr + at * D + col, float8_codes(x), mask=mask)
    else:
        tl.store(cache_ptr + at * D + col, x.to(cache_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _qk_rope_store(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    pos_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    q_ptr,
    gate_ptr,
    capacity,
    positions,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    FORMAT: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    head = tl.program_id(1)  # of queries, then of keys
    col = tl.arange(0, D)
    at = tl.load(pos_ptr).to(tl.int32) + row
    angle = tl.minimum(at, positions - 1) * HALF
    cos_ptr += angle
    sin_ptr += angle
    x_ptr = qkv_ptr + row * ((2 * HEADS + 2 * KV_HEADS) * D)
    if head < HEADS:
        x_ptr += head * 2 * D
        own = (row * HEADS + head) * D
        tl.store(gate_ptr + own + col, tl.load(x_ptr + D + col))
        q = normed_turned(x_ptr, q_norm_ptr, cos_ptr, sin_ptr, col, eps, D, HALF)
        if FORMAT == "int4":
            q = rounded(rotation(q, col, D), q_ptr.dtype.element_ty)
        tl.store(q_ptr + own + col, q.to(q_ptr.dtype.element_ty))
    else:
        kv = head - HEADS
        x_ptr += (2 * HEADS + kv) * D
        cached = kv.to(tl.int64) * capacity + at
        room = at < capacity  # a row past the end is a rejected one; it goes nowhere
        k = normed_turned(x_ptr, k_norm_ptr, cos_ptr, sin_ptr, col, eps, D, HALF)
        _put(k_ptr, k_scale_ptr, cached, k, col, room, D, FORMAT)
        v = tl.load(x_ptr + KV_HEADS * D + col).to(tl.float32)
        _put(v_ptr, v_scale_ptr, cached, v, col, room, D, FORMAT)


@variant(
    "qk_rope_store",
    "triton",
    fake,
    MUTATES,
    replace(SUPPORT, powers={"d_head": 2, "rotary": 2}),
)
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
    """As the reference; the head width and half of `rotary` must be powers of two.

    Nothing is checked against the capacity on the device: rows past it are not stored.
    """
    kv_heads, capacity, _ = k_cache.shape
    d, rows, half = q_norm.shape[0], qkv.shape[0], cos.shape[1]
    named = {"qkv": qkv, "q_norm": q_norm, "k_norm": k_norm, "cos": cos, "sin": sin}
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    check("qk_rope_store", rows, **caches, **named)
    same_dtype("qk_rope_store", **named)
    form = format_of("qk_rope_store", qkv, k_cache, v_cache, k_scale, v_scale)
    if d & (d - 1) or half & (half - 1) or 2 * half > d:
        raise ValueError(
            "qk_rope_store: triton needs a head width and half a rotary width that are powers of"
            f" two, got {d} and {half}; use kernel.qk_rope_store=reference"
        )
    heads = (qkv.shape[1] // d - 2 * kv_heads) // 2
    q, gate = qkv.new_empty(rows, heads, d), qkv.new_empty(rows, heads * d)
    if form == "float8":
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    overlap = dependent_launch(qkv.device)
    _qk_rope_store[(rows, heads + kv_heads)](
        qkv,
        q_norm,
        k_norm,
        cos,
        sin,
        pos,
        k_cache,
        v_cache,
        k_cache if k_scale is None else k_scale,
        v_cache if v_scale is None else v_scale,
        q,
        gate,
        capacity,
        cos.shape[0],
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        HALF=half,
        FORMAT=form,
        PDL=overlap,
        num_warps=1,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return q, gate
