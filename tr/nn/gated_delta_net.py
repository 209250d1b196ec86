"""Gated DeltaNet, the linear-attention mixer: convolution, gates, delta rule, gated norm.

Three ways to run the same layer. `sequence` is pure and batched: training, regeneration. `step`
takes a few rows, reads one checkpoint of the recurrent state and keeps the rows' records, so that
rejected rows cost nothing. `prefill` takes a prompt's tokens onto the same decoding state.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.gated_delta_chunk import chunked, gated_norm, recurrent
from kernels.gated_delta_chunk.reference import ready, silu_conv
from kernels.registry import Ops
from tr.jit import fused
from tr.nn.formats.dense import Dense, dense
from tr.nn.formats.matrix import Make, Matrix
from tr.nn.formats.operand import Operand
from tr.tree import static, tree, typed

Form = Literal["chunk", "recurrent", "train"]


@dataclass(frozen=True)
class Spec:
    """Head counts and widths; value head h reads query and key head h // (v_heads / k_heads)."""

    k_heads: int
    v_heads: int
    d_k: int
    d_v: int
    conv_width: int
    eps: float

    @property
    def channels(self) -> int:
        """Width of q, k and v together: what passes the convolution."""
        return 2 * self.k_heads * self.d_k + self.v_heads * self.d_v


@tree
class Params:
    in_qkvz: Matrix  # [channels + v_heads d_v, d_model]: q, k, v stacked as one matrix, then z
    in_ba: Dense  # [2 v_heads, d_model] = [b | a]
    conv: Float[Tensor, "channels width"]
    a_log: Float[Tensor, " v_heads"]
    dt_bias: Float[Tensor, " v_heads"]
    norm: Float[Tensor, " d_v"]  # plain gain
    out: Matrix
    spec: Spec = static()


@tree
class Past:
    """What a sequence leaves behind: recurrent state and the convolution's last inputs."""

    h: Float[Tensor, "batch v_heads d_k d_v"]  # fp32
    tail: Float[Tensor, "batch past channels"]


@tree
class State:
    """Decoding state of one layer. Records past the model's `pending` count are garbage."""

    h: Float[Tensor, "v_heads d_k d_v"]  # fp32 checkpoint: tokens before the pending rows
    tail: Float[Tensor, "past channels"]
    past_x: Float[Tensor, "capacity channels"]
    past_k: Float[Tensor, "capacity k_heads d_k"]
    past_u: Float[Tensor, "capacity v_heads d_v"]
    past_decay: Float[Tensor, "capacity v_heads"]


def init(
    spec: Spec, d_model: int, generator: torch.Generator, dtype: torch.dtype, make: Make = dense
) -> Params:
    """Random parameters in the published distribution: A in [0.01, 16], dt in [0.001, 0.1]."""
    device = generator.device
    inner = spec.v_heads * spec.d_v

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(spec.v_heads, generator=generator, device=device) * (high - low) + low

    dt = uniform(-6.9, -2.3).exp()
    conv = torch.randn(spec.channels, spec.conv_width, generator=generator, device=device)
    return Params(
        in_qkvz=make([spec.channels, inner], d_model, generator, dtype),
        in_ba=dense([spec.v_heads, spec.v_heads], d_model, generator, dtype),
        conv=(conv * spec.conv_width**-0.5).to(dtype),
        a_log=uniform(0.01, 16).log().to(dtype),
        dt_bias=(dt + torch.log(-torch.expm1(-dt))).to(dtype),
        norm=torch.ones(spec.d_v, dtype=dtype, device=device),
        out=make([d_model], inner, generator, dtype),
        spec=spec,
    )


def init_past(params: Params, batch: int) -> Past:
    s, w = params.spec, params.conv
    return Past(
        h=torch.zeros(batch, s.v_heads, s.d_k, s.d_v, device=w.device),
        tail=w.new_zeros(batch, s.conv_width - 1, s.channels),
    )


def init_state(params: Params, rows: int) -> State:
    """Zero state with room for the records of `rows` rows."""
    s, w = params.spec, params.conv
    fp32 = torch.zeros(0, device=w.device)
    return State(
        h=fp32.new_zeros(s.v_heads, s.d_k, s.d_v),
        tail=w.new_zeros(s.conv_width - 1, s.channels),
        past_x=w.new_zeros(rows, s.channels),
        past_k=fp32.new_zeros(rows, s.k_heads, s.d_k),
        past_u=fp32.new_zeros(rows, s.v_heads, s.d_v),
        past_decay=fp32.new_zeros(rows, s.v_heads),
    )


@typed
def sequence(
    params: Params, past: Past, x: Float[Tensor, "batch tokens d_model"], form: Form = "chunk"
) -> tuple[Float[Tensor, "batch tokens d_model"], Past]:
    """Many tokens at once; pure. `train` is the chunked form with a differentiable inverse."""
    s = params.spec
    proj, z = params.in_qkvz.sequence(x).split([s.channels, s.v_heads * s.d_v], -1)
    b, a = params.in_ba.sequence(x).split(s.v_heads, -1)
    window = torch.cat([past.tail, proj], 1)  # [batch, past + tokens, channels]
    train = form == "train"
    c = (_silu_conv_fused if train else silu_conv)(window, params.conv)
    make_ready = _ready_fused if train else ready
    q, k, v, g, beta = make_ready(c, a, b, params.a_log, params.dt_bias, s.k_heads, s.d_k)
    if form == "recurrent":
        o, h = recurrent(q, k, v, g, beta, past.h)
    else:
        o, h = chunked(q, k, v, g, beta, past.h, train=train)
    o = o.transpose(1, 2).to(x.dtype, memory_format=torch.contiguous_format)
    norm = _norm_fused if train else gated_norm
    y = norm(o, z.unflatten(-1, (s.v_heads, s.d_v)), params.norm, s.eps)
    kept = window[:, window.shape[1] - past.tail.shape[1] :]
    return params.out.sequence(y.flatten(2)), Past(h=h, tail=kept)


@typed
def prefill(
    params: Params, state: State, x: Float[Tensor, "tokens d_model"], pending: int, ops: Ops
) -> tuple[Float[Tensor, "tokens d_model"], State]:
    """Prompt tokens onto a decoding state whose first `pending` records are accepted rows.

    `state` is donated; afterwards nothing is pending.
    """
    ops.gated_delta_absorb(*_records(state), pending)
    y = ops.gated_delta_chunk(
        params.in_qkvz.sequence(x, ops),
        params.in_ba.sequence(x, ops),
        params.conv,
        params.a_log,
        params.dt_bias,
        params.norm,
        state.h,
        state.tail,
        params.spec.eps,
    )
    return params.out.sequence(y, ops), state


@typed
def step(
    params: Params,
    state: State,
    x: Operand,
    pending: Int64[Tensor, ""],
    ops: Ops,
) -> tuple[Float[Tensor, "rows inner"], State]:
    """A few rows up to the output projection; `state` is donated: `pending` records fold in, then
    x's rows replace them.
    """
    y = ops.gated_delta_step(
        *params.in_qkvz.project_beside(x, params.in_ba, ops),
        params.conv,
        params.a_log,
        params.dt_bias,
        params.norm,
        *_records(state),
        pending,
        params.spec.eps,
    )
    return y, state


def _records(s: State) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return s.h, s.tail, s.past_x, s.past_k, s.past_u, s.past_decay


def _silu_conv(window: Tensor, weight: Tensor) -> Tensor:
    """silu of the depthwise causal convolution, tap by tap: what a GPU differentiates fast."""
    wide, width = window.float(), weight.shape[1]
    tokens = window.shape[1] - width + 1
    taps = [wide[:, j : j + tokens] * weight[:, j].float() for j in range(width)]
    return F.silu(sum(taps[1:], taps[0]).to(window.dtype))


_ready_fused, _silu_conv_fused, _norm_fused = fused(ready), fused(_silu_conv), fused(gated_norm)
