"""Gated attention: query-key norm, partial rotary embedding, grouped heads, output gate."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.qk_rope_store import as_cached, rotate
from kernels.registry import Ops
from kernels.rms_norm import rms_norm
from tr.nn.formats.dense import dense
from tr.nn.formats.matrix import Make, Matrix
from tr.nn.formats.operand import Operand
from tr.nn.rope import Rope
from tr.tree import static, tree, typed


@dataclass(frozen=True)
class Spec:
    heads: int
    kv_heads: int
    d_head: int
    eps: float
    cache: torch.dtype | None = None  # what keys and values are rounded to; None: nothing


@tree
class Params:
    qkv: Matrix  # [heads (2 d_head) + 2 kv_heads d_head, d_model]: per head [query | gate]; k; v
    q_norm: Float[Tensor, " d_head"]
    k_norm: Float[Tensor, " d_head"]
    out: Matrix
    spec: Spec = static()


@tree
class Past:
    """Keys (normed and rotated) and values of the tokens so far, rounded as a cache holds them."""

    k: Float[Tensor, "batch kv_heads tokens d_head"]
    v: Float[Tensor, "batch kv_heads tokens d_head"]


@tree
class State:
    """Cache of one layer; rows at and past the model's position are garbage, but finite."""

    k: Float[Tensor, "kv_heads capacity d_head"]
    v: Float[Tensor, "kv_heads capacity d_head"]


def init(
    spec: Spec, d_model: int, generator: torch.Generator, dtype: torch.dtype, make: Make = dense
) -> Params:
    inner, kv = spec.heads * spec.d_head, spec.kv_heads * spec.d_head
    zeros = torch.zeros(spec.d_head, dtype=dtype, device=generator.device)
    return Params(
        qkv=make([2 * inner, kv, kv], d_model, generator, dtype),
        q_norm=zeros,
        k_norm=zeros.clone(),
        out=make([d_model], inner, generator, dtype),
        spec=spec,
    )


def init_past(params: Params, batch: int) -> Past:
    s = params.spec
    empty = params.q_norm.new_zeros(batch, s.kv_heads, 0, s.d_head)
    return Past(k=empty, v=empty)


def init_state(params: Params, capacity: int) -> State:
    s = params.spec
    shape, dtype = (s.kv_heads, capacity, s.d_head), s.cache or params.q_norm.dtype
    k, v = (params.q_norm.new_zeros(shape, dtype=dtype) for _ in range(2))
    return State(k=k, v=v)


@typed
def sequence(
    params: Params, past: Past, x: Float[Tensor, "batch tokens d_model"], rope: Rope
) -> tuple[Float[Tensor, "batch tokens d_model"], Past]:
    """Many tokens at once; pure. `rope` holds the tables of positions 0 .. past + tokens - 1."""
    s = params.spec
    tokens, before = x.shape[1], past.k.shape[2]
    inner, kv = s.heads * s.d_head, s.kv_heads * s.d_head
    qg, k, v = params.qkv.sequence(x).split([2 * inner, kv, kv], -1)
    q, gate = qg.unflatten(-1, (s.heads, 2 * s.d_head)).chunk(2, -1)
    k, v = (t.unflatten(-1, (s.kv_heads, s.d_head)) for t in (k, v))
    if before + tokens > (limit := rope.cos.shape[0]):
        raise ValueError(
            f"attention: {before + tokens} tokens exceed the model's {limit} positions"
        )
    cos, sin = (t[before : before + tokens] for t in (rope.cos, rope.sin))
    q = rotate(rms_norm(q, params.q_norm, s.eps), cos, sin).transpose(1, 2)
    k = rotate(rms_norm(k, params.k_norm, s.eps), cos, sin).transpose(1, 2)
    v = v.transpose(1, 2)
    if s.cache is not None:
        k, v = (as_cached(t, s.cache).to(x.dtype) for t in (k, v))
    if before:
        k, v = torch.cat([past.k, k], 2), torch.cat([past.v, v], 2)
    a = _attend(q, k, v, before).transpose(1, 2)
    y = a.flatten(2) * gate.flatten(2).sigmoid()
    return params.out.sequence(y), Past(k=k, v=v)


@typed
def prefill(
    params: Params, state: State, x: Float[Tensor, "tokens d_model"], pos: int, rope: Rope
) -> tuple[Float[Tensor, "tokens d_model"], State]:
    """Prompt tokens at positions pos .. pos + tokens - 1; `state` is donated."""
    k, v = (t[None, :, :pos].to(x.dtype) for t in (state.k, state.v))
    y, past = sequence(params, Past(k=k, v=v), x[None], rope)
    end = pos + x.shape[0]
    state.k[:, pos:end] = past.k[0, :, pos:].to(state.k.dtype)  # exact: rounded already
    state.v[:, pos:end] = past.v[0, :, pos:].to(state.v.dtype)
    return y[0], state


@typed
def step(
    params: Params,
    state: State,
    x: Operand,
    pos: Int64[Tensor, ""],
    rope: Rope,
    ops: Ops,
) -> tuple[Float[Tensor, "rows inner"], State]:
    """A few rows at positions pos, pos + 1, ... up to the output projection; `state` is donated:
    their k and v go in.
    """
    q, gate = ops.qk_rope_store(
        params.qkv.project(x, ops),
        params.q_norm,
        params.k_norm,
        rope.cos,
        rope.sin,
        pos,
        state.k,
        state.v,
        params.spec.eps,
    )
    return ops.attention_decode(q, gate, state.k, state.v, pos), state


def _attend(q: Tensor, k: Tensor, v: Tensor, before: int) -> Tensor:
    """Causal attention of q [batch, heads, tokens, d] whose first token has `before` keys ahead."""
    tokens, keys = q.shape[2], k.shape[2]
    if not before or tokens == 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
    seen = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).tril(before)
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
