"""Gated attention: query-key norm, partial rotary embedding, grouped heads, output gate."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.attention_prefill import causal
from kernels.qk_rope_store import rotate
from kernels.registry import Ops
from kernels.rms_norm import rms_norm
from tr.nn.formats.dense import dense
from tr.nn.formats.kv.cache import Cache, rounded
from tr.nn.formats.kv.cache import make as make_cache
from tr.nn.formats.kv.kvarn import Kvarn
from tr.nn.formats.kv.spans import attend
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
    cache: str = "bf16"  # format of keys and values; bf16: as the model computes them


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


State = Cache


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
    return make_cache(s.cache, s.kv_heads, capacity, s.d_head, params.q_norm)


@typed
def sequence(
    params: Params, past: Past, x: Float[Tensor, "batch tokens d_model"], rope: Rope
) -> tuple[Float[Tensor, "batch tokens d_model"], Past]:
    """Many tokens at once; pure. `rope` holds the tables of positions 0 .. past + tokens - 1."""
    before = past.k.shape[2]
    q, gate, k, v = _project(params, x, before, rope)
    k, v = (rounded(params.spec.cache, t).transpose(1, 2) for t in (k, v))
    if before:
        k, v = torch.cat([past.k, k], 2), torch.cat([past.v, v], 2)
    return params.out.sequence(_gated(q, gate, k, v, before)), Past(k=k, v=v)


@typed
def prefill(
    params: Params,
    state: State,
    x: Float[Tensor, "tokens d_model"],
    pos: int,
    rope: Rope,
    ops: Ops,
) -> tuple[Float[Tensor, "tokens d_model"], State]:
    """Prompt tokens at positions pos .. pos + tokens - 1; `state` is donated.

    They read keys and values as they are stored, their own too, as every later token will.
    """
    q, gate, k, v = _project(params, x[None], pos, rope, ops)
    query = q[0].transpose(0, 1)
    if isinstance(state, Kvarn):
        y = state.prefill(query, gate[0], k[0], v[0], pos, ops)
    else:
        state.extend(k[0], v[0], pos)
        y = attend(state.rows(0, pos + x.shape[0]), query, gate[0], pos, ops)
    return params.out.sequence(y, ops), state


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
    p = params
    qkv = p.qkv.project(x, ops)
    q, gate = state.store(qkv, p.q_norm, p.k_norm, rope, pos, p.spec.eps, ops)
    return state.attend(q, gate, pos, ops), state


def _project(
    params: Params, x: Tensor, before: int, rope: Rope, ops: Ops | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries [batch, heads, tokens, d] and gates [batch, tokens, heads, d] of tokens behind
    `before` others; keys and values [batch, tokens, kv_heads, d]; queries and keys normed, rotated.
    """
    s, tokens = params.spec, x.shape[1]
    inner, kv = s.heads * s.d_head, s.kv_heads * s.d_head
    qg, k, v = params.qkv.sequence(x, ops).split([2 * inner, kv, kv], -1)
    q, gate = qg.unflatten(-1, (s.heads, 2 * s.d_head)).chunk(2, -1)
    k, v = (t.unflatten(-1, (s.kv_heads, s.d_head)) for t in (k, v))
    if before + tokens > (limit := rope.cos.shape[0]):
        raise ValueError(
            f"attention: {before + tokens} tokens exceed the model's {limit} positions"
        )
    cos, sin = (t[before : before + tokens] for t in (rope.cos, rope.sin))
    q = rotate(rms_norm(q, params.q_norm, s.eps), cos, sin).transpose(1, 2)
    return q, gate, rotate(rms_norm(k, params.k_norm, s.eps), cos, sin), v


def _gated(q: Tensor, gate: Tensor, k: Tensor, v: Tensor, before: int) -> Tensor:
    """What attention gives, gated; [batch, tokens, heads d]."""
    a = causal(q, k, v, before).transpose(1, 2)
    return a.flatten(2) * gate.flatten(2).sigmoid()
