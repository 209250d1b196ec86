"""One pre-norm decoder layer: h = x + mixer(norm(x)); y = h + mlp(norm(h))."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.registry import Ops
from kernels.rms_norm import rms_norm
from tr.model.config import FULL, ModelConfig
from tr.nn import attention, gated_delta_net, mlp
from tr.nn.formats.dense import dense
from tr.nn.formats.matrix import Make
from tr.nn.formats.operand import Operand
from tr.nn.rope import Rope
from tr.tree import static, tree, typed

Past = attention.Past | gated_delta_net.Past
State = attention.State | gated_delta_net.State


@tree
class Params:
    input_norm: Float[Tensor, " d_model"]
    mixer: attention.Params | gated_delta_net.Params
    post_norm: Float[Tensor, " d_model"]
    mlp: mlp.Params
    eps: float = static()


def init(
    config: ModelConfig,
    kind: str,
    generator: torch.Generator,
    dtype: torch.dtype,
    make: Make = dense,
) -> Params:
    zeros = torch.zeros(config.d_model, dtype=dtype, device=generator.device)
    if kind == FULL:
        mixer = attention.init(config.attention, config.d_model, generator, dtype, make)
    else:
        mixer = gated_delta_net.init(config.delta, config.d_model, generator, dtype, make)
    return Params(
        input_norm=zeros,
        mixer=mixer,
        post_norm=zeros.clone(),
        mlp=mlp.init(config.d_model, config.d_ff, generator, dtype, make),
        eps=config.eps,
    )


def init_past(params: Params, batch: int) -> Past:
    if isinstance(params.mixer, attention.Params):
        return attention.init_past(params.mixer, batch)
    return gated_delta_net.init_past(params.mixer, batch)


def init_state(params: Params, capacity: int, rows: int) -> State:
    if isinstance(params.mixer, attention.Params):
        return attention.init_state(params.mixer, capacity)
    return gated_delta_net.init_state(params.mixer, rows)


@typed
def sequence(
    params: Params,
    past: Past,
    x: Float[Tensor, "batch tokens d_model"],
    rope: Rope,
    form: gated_delta_net.Form = "chunk",
) -> tuple[Float[Tensor, "batch tokens d_model"], Past]:
    """Many tokens at once, pure; training, batched regeneration and prefill share it."""
    y = rms_norm(x, params.input_norm, params.eps)
    if isinstance(params.mixer, attention.Params):
        assert isinstance(past, attention.Past)
        y, past = attention.sequence(params.mixer, past, y, rope)
    else:
        assert isinstance(past, gated_delta_net.Past)
        y, past = gated_delta_net.sequence(params.mixer, past, y, form)
    x = x + y
    return x + mlp.sequence(params.mlp, rms_norm(x, params.post_norm, params.eps)), past


@typed
def prefill(
    params: Params,
    state: State,
    x: Float[Tensor, "tokens d_model"],
    pos: int,
    pending: int,
    rope: Rope,
    ops: Ops,
) -> tuple[Float[Tensor, "tokens d_model"], State]:
    """Prompt tokens onto a decoding state, which is donated."""
    y = ops.rms_norm(x, params.input_norm, params.eps)
    if isinstance(params.mixer, attention.Params):
        assert isinstance(state, attention.State)
        y, state = attention.prefill(params.mixer, state, y, pos, rope, ops)
    else:
        assert isinstance(state, gated_delta_net.State)
        y, state = gated_delta_net.prefill(params.mixer, state, y, pending, ops)
    x, y = ops.add_rms_norm(x, y, params.post_norm, params.eps)
    return x + mlp.prefill(params.mlp, y, ops), state


@typed
def step(
    params: Params,
    state: State,
    x: Float[Tensor, "rows d_model"],
    y: Operand,
    after: Float[Tensor, " d_model"],
    pos: Int64[Tensor, ""],
    pending: Int64[Tensor, ""],
    rope: Rope,
    ops: Ops,
) -> tuple[Float[Tensor, "rows d_model"], Operand, State]:
    """A few rows. `y` is the norm of x by the layer's own gain; returned with the layer's output is
    its norm by the gain `after`: each residual sum sits in one operator with the norm that follows.
    """
    if isinstance(params.mixer, attention.Params):
        assert isinstance(state, attention.State)
        mixed, state = attention.step(params.mixer, state, y, pos, rope, ops)
    else:
        assert isinstance(state, gated_delta_net.State)
        mixed, state = gated_delta_net.step(params.mixer, state, y, pending, ops)
    out, eps = params.mixer.out, params.eps
    x, y = out.add_norm(Operand(x=mixed), x, params.post_norm, eps, ops)
    x, y = mlp.step(params.mlp, y, x, after, eps, ops)
    return x, y, state
