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
from kernels.hadamard import rotation
from kernels.kvarn import LARGEST, RING, TILE
from kernels.kvarn_store.reference import MUTATES, fake
from kernels.qk_rope_store.triton import normed_turned

_TILE = tl.constexpr(TILE)
_RING = tl.constexpr(RING)
_LARGEST = tl.constexpr(LARGEST)


@triton.jit
def _put(y_ptr, col, x, D: tl.constexpr):
    x = tl.minimum(tl.maximum(rotation(x, col, D), -_LARGEST), _LARGEST)
    tl.store(y_ptr + col, x.to(y_ptr.dtype.element_ty))


@triton.jit
def _kvarn_store(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    pos_ptr,
    sink_ptr,
    ring_ptr,
    q_ptr,
    gate_ptr,
    positions,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    head = tl.program_id(1)  # of queries, then of keys
    col = tl.arange(0, D)
    p = tl.load(pos_ptr).to(tl.int32) + row
    angle = tl.minimum(p, positions - 1) * HALF
    cos_ptr += angle
    sin_ptr += angle
    x_ptr = qkv_ptr + row * ((2 * HEADS + 2 * KV_HEADS) * D)
    if head < HEADS:
        x_ptr += head * 2 * D
        own = (row * HEADS + head) * D
        tl.store(gate_ptr + own + col, tl.load(x_ptr + D + col))
        q = normed_turned(x_ptr, q_norm_ptr, cos_ptr, sin_ptr, col, eps, D, HALF)
        tl.store(q_ptr + own + col, rotation(q, col, D))
    else:
        kv = head - HEADS
        x_ptr += (2 * HEADS + kv) * D
        k = normed_turned(x_ptr, k_norm_ptr, cos_ptr, sin_ptr, col, eps, D, HALF)
        v = tl.load(x_ptr + KV_HEADS * D + col).to(tl.float32)
        if p < _TILE:
            at = (kv * _TILE + p) * D
            _put(sink_ptr + at, col, k, D)
            _put(sink_ptr + KV_HEADS * _TILE * D + at, col, v, D)
        else:
            at = (kv * _RING + p % _RING) * D
            _put(ring_ptr + at, col, k, D)
            _put(ring_ptr + KV_HEADS * _RING * D + at, col, v, D)


@variant(
    "kvarn_store",
    "triton",
    fake,
    MUTATES,
    replace(SUPPORT, powers={"d_head": 2, "rotary": 2}),
)
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
    """As the reference; half of `rotary` must be a power of two, rows past the tables use their
    last angle: they are rejected ones.
    """
    _, kv_heads, _, d = sink.shape
    rows, half = qkv.shape[0], cos.shape[1]
    named = {"qkv": qkv, "q_norm": q_norm, "k_norm": k_norm, "cos": cos, "sin": sin}
    check("kvarn_store", rows, sink=sink, ring=ring, **named)
    same_dtype("kvarn_store", **named)
    same_dtype("kvarn_store", sink=sink, ring=ring)
    if d & (d - 1) or half & (half - 1) or 2 * half > d:
        raise ValueError(
            "kvarn_store: triton needs a head width and half a rotary width that are powers of"
            f" two, got {d} and {half}; use kernel.kvarn_store=reference"
        )
    heads = (qkv.shape[1] // d - 2 * kv_heads) // 2
    q = qkv.new_empty(rows, heads, d, dtype=torch.float32)
    gate = qkv.new_empty(rows, heads * d)
    overlap = dependent_launch(qkv.device)
    _kvarn_store[(rows, heads + kv_heads)](
        qkv,
        q_norm,
        k_norm,
        cos,
        sin,
        pos,
        sink,
        ring,
        q,
        gate,
        cos.shape[0],
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        HALF=half,
        PDL=overlap,
        num_warps=1,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return q, gate
