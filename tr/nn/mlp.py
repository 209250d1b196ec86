"""SwiGLU: y = down(silu(gate(x)) * up(x)), gate and up stacked in one matrix."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kernels.registry import Ops
from tr.nn.formats.dense import dense
from tr.nn.formats.matrix import Matrix
from tr.tree import tree, typed


@tree
class Params:
    gate_up: Matrix  # [2 d_ff, d_model] = [gate | up]
    down: Matrix


def init(d_model: int, d_ff: int, generator: torch.Generator, dtype: torch.dtype) -> Params:
    return Params(
        gate_up=dense([d_ff, d_ff], d_model, generator, dtype),
        down=dense([d_model], d_ff, generator, dtype),
    )


@typed
def sequence(params: Params, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
    gate, up = params.gate_up.sequence(x).chunk(2, -1)
    return params.down.sequence(F.silu(gate) * up)


@typed
def step(
    params: Params, x: Float[Tensor, "rows d_model"], ops: Ops
) -> Float[Tensor, "rows d_model"]:
    return params.down.step(ops.silu_mul(params.gate_up.step(x, ops)), ops)
