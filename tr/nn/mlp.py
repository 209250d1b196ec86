"""SwiGLU: y = down(silu(gate(x)) * up(x)), gate and up stacked in one matrix."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kernels.registry import Ops
from tr.nn.formats.dense import dense
from tr.nn.formats.matrix import Make, Matrix
from tr.nn.formats.operand import Operand
from tr.tree import tree, typed


@tree
class Params:
    gate_up: Matrix  # [2 d_ff, d_model] = [gate | up]
    down: Matrix


def init(
    d_model: int, d_ff: int, generator: torch.Generator, dtype: torch.dtype, make: Make = dense
) -> Params:
    return Params(
        gate_up=make([d_ff, d_ff], d_model, generator, dtype),
        down=make([d_model], d_ff, generator, dtype),
    )


@typed
def sequence(params: Params, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
    gate, up = params.gate_up.sequence(x).chunk(2, -1)
    return params.down.sequence(F.silu(gate) * up)


@typed
def prefill(
    params: Params, x: Float[Tensor, "tokens d_model"], ops: Ops
) -> Float[Tensor, "tokens d_model"]:
    """A prompt's tokens, through operators."""
    return params.down.sequence(ops.silu_mul(params.gate_up.sequence(x, ops)), ops)


@typed
def step(
    params: Params,
    y: Operand,
    residual: Float[Tensor, "rows d_model"],
    gain: Float[Tensor, " d_model"],
    eps: float,
    ops: Ops,
) -> tuple[Float[Tensor, "rows d_model"], Operand]:
    """A few rows: s = residual + mlp(y), and the norm of s with gain 1 + gain."""
    return params.down.add_norm(params.gate_up.gate_up(y, ops), residual, gain, eps, ops)
