"""One program per row and head: of queries, which also moves the gate, or of keys and values."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import (
    SUPPORT,
    check,
    dependent_launch,
    let_next_start,
    same_dtype,
    wait_for_inputs,
)
from kernels.qk_rope_store.reference import fake
from kernels.rounding import float8_codes, rounded


@triton.jit
def _unit(x_ptr, weight_ptr, col, mask, rstd):
    """Columns `col` of a normed head, rounded."""
    x = tl.load(x_ptr + col, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    return rounded(x * rstd * (1.0 + gain), x_ptr.dtype.element_ty)


@triton.jit
def _put(y_ptr, col, mask, y, FLOAT8: tl.constexpr):
    if FLOAT8:
        tl.store(y_ptr + col, float8_codes(y), mask=mask)
    else:
        tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _normed_turned(
    x_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    y_ptr,
    room,
    eps,
    D: tl.constexpr,
    HALF: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """One head: y = turn(rms_norm(x)), each product rounded; written where `room` is true."""
    dtype = x_ptr.dtype.element_ty
    col = tl.arange(0, D)
    x = tl.load(x_ptr + col).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / D + eps)
    still = col >= tl.where(room, 2 * HALF, D)
    _put(y_ptr, col, still, _unit(x_ptr, weight_ptr, col, still, rstd), FLOAT8)
    j = tl.arange(0, HALF)
    turns = j < tl.where(room, HALF, 0)
    cos = tl.load(cos_ptr + j, mask=turns, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + j, mask=turns, other=0.0).to(tl.float32)
    a = _unit(x_ptr, weight_ptr, j, turns, rstd)
    b = _unit(x_ptr, weight_ptr, j + HALF, turns, rstd)
    low = rounded(rounded(a * cos, dtype) - rounded(b * sin, dtype), dtype)
    high = rounded(rounded(b * cos, dtype) + rounded(a * sin, dtype), dtype)
    _put(y_ptr, j, turns, low, FLOAT8)
    _put(y_ptr, j + HALF, turns, high, FLOAT8)


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
    q_ptr,
    gate_ptr,
    capacity,
    positions,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    FLOAT8: tl.constexpr,
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
        q_ptr += own
        always = row >= 0
        _normed_turned(x_ptr, q_norm_ptr, cos_ptr, sin_ptr, q_ptr, always, eps, D, HALF, False)
    else:
        kv = head - HEADS
        x_ptr += (2 * HEADS + kv) * D
        cached = (kv.to(tl.int64) * capacity + at) * D
        k_ptr += cached
        room = at < capacity  # a row past the end is a rejected one; it goes nowhere
        _normed_turned(x_ptr, k_norm_ptr, cos_ptr, sin_ptr, k_ptr, room, eps, D, HALF, FLOAT8)
        v = tl.load(x_ptr + KV_HEADS * D + col).to(tl.float32)
        _put(v_ptr + cached, col, col < tl.where(room, D, 0), v, FLOAT8)


@variant(
    "qk_rope_store",
    "triton",
    fake,
    ("k_cache", "v_cache"),
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
) -> tuple[Tensor, Tensor]:
    """As the reference; the head width and half of `rotary` must be powers of two.

    Nothing is checked against the capacity on the device: rows past it are not stored.
    """
    kv_heads, capacity, d = k_cache.shape
    rows, half = qkv.shape[0], cos.shape[1]
    named = {"qkv": qkv, "q_norm": q_norm, "k_norm": k_norm, "cos": cos, "sin": sin}
    check("qk_rope_store", rows, k_cache=k_cache, v_cache=v_cache, **named)
    same_dtype("qk_rope_store", **named)
    same_dtype("qk_rope_store", k_cache=k_cache, v_cache=v_cache)
    float8 = k_cache.dtype == torch.float8_e4m3fn
    if not float8:
        same_dtype("qk_rope_store", qkv=qkv, k_cache=k_cache)
    if d & (d - 1) or half & (half - 1) or 2 * half > d:
        raise ValueError(
            "qk_rope_store: triton needs a head width and half a rotary width that are powers of"
            f" two, got {d} and {half}; use kernel.qk_rope_store=reference"
        )
    heads = (qkv.shape[1] // d - 2 * kv_heads) // 2
    q, gate = qkv.new_empty(rows, heads, d), qkv.new_empty(rows, heads * d)
    caches = [c.view(torch.uint8) if float8 else c for c in (k_cache, v_cache)]
    overlap = dependent_launch(qkv.device)
    _qk_rope_store[(rows, heads + kv_heads)](
        qkv,
        q_norm,
        k_norm,
        cos,
        sin,
        pos,
        *caches,
        q,
        gate,
        capacity,
        cos.shape[0],
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        HALF=half,
        FLOAT8=float8,
        PDL=overlap,
        num_warps=1,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return q, gate
