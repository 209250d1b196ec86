"""The third launch: the pass through the chunks in order, which carries the state.

It is sequential over chunks and parallel over heads and columns of the state, which it holds in
registers, transposed: columns of v are the lines of every product, so that the state, what it
answers and the corrections u go from one product to the next without leaving their registers.
Loads in flight may change; what each product takes rounded, and their order, is numerics.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's ranges and launch options exist inside its compiler alone.)

import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_delta_chunk.triton_parts import load, operand, store


@triton.jit(do_not_specialize=["tokens"])
def _pass(
    qk_ptr,
    v_ptr,
    inverse_ptr,
    inner_ptr,
    decay_ptr,
    h_ptr,
    o_ptr,
    tokens,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """o [tokens, v_heads d_v], rounded, and h after all tokens; every tile here is transposed."""
    dtype = o_ptr.dtype.element_ty
    head = tl.program_id(1).to(tl.int64)
    k_head = head // (V_HEADS // K_HEADS)
    chunks = tl.cdiv(tokens, CHUNK)
    padded = chunks * CHUNK
    d = tl.arange(0, D_K)
    i = tl.arange(0, CHUNK)
    col = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = i[:, None] * CHUNK + i[None, :]
    span = i[:, None] * D_K + d[None, :]
    state = h_ptr + head * D_K * D_V + d[None, :] * D_V + col[:, None]
    s = tl.load(state)
    for n in tl.range(chunks, num_stages=STAGES):
        place = n * V_HEADS + head
        q = load(qk_ptr + (k_head * padded + n * CHUNK) * D_K + span)
        k = load(qk_ptr + ((K_HEADS + k_head) * padded + n * CHUNK) * D_K + span)
        v = load(v_ptr + (place * D_V + col[:, None]) * CHUNK + i[None, :])
        inverse = load(inverse_ptr + place * CHUNK * CHUNK + at)
        inner = load(inner_ptr + place * CHUNK * CHUNK + at)
        decay = decay_ptr + place * 2 * CHUNK
        entry = tl.broadcast_to(tl.load(decay + i)[None, :], [COLUMNS, CHUNK])
        rest = tl.load(decay + CHUNK + i)[None, :]
        all = tl.load(decay + CHUNK - 1)
        held = operand(s, dtype)
        r = tl.dot(held, tl.trans(k), input_precision="tf32x3")
        r = tl.fma(r, -entry, v.to(tl.float32))
        u = tl.dot(operand(r, dtype), tl.trans(inverse), input_precision="tf32x3")
        o = tl.dot(held, tl.trans(q), input_precision="tf32x3") * entry
        o = tl.dot(operand(u, dtype), tl.trans(inner), o, input_precision="tf32x3")
        s = tl.dot(operand(u * rest, dtype), k, s * all, input_precision="tf32x3")
        row = n * CHUNK + i
        out = o_ptr + (row[None, :] * V_HEADS + head) * D_V + col[:, None]
        store(out, o, mask=(row < tokens)[None, :] & (col >= 0)[:, None])
    tl.store(state, s)


def launch_pass(
    qk: Tensor,
    v: Tensor,
    inverse: Tensor,
    inner: Tensor,
    decay: Tensor,
    h: Tensor,
    o: Tensor,
    heads: dict[str, int],
    columns: int,
    stages: int,
) -> None:
    """Write o [tokens, v_heads d_v]; h is overwritten by the state after all tokens."""
    v_heads, _, d_v = h.shape
    _pass[(d_v // columns, v_heads)](
        qk,
        v,
        inverse,
        inner,
        decay,
        h,
        o,
        o.shape[0],
        **heads,
        COLUMNS=columns,
        STAGES=stages,
        num_warps=columns // 16,
        enable_fp_fusion=False,
    )
