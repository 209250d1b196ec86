"""Four launches: inputs, the chunks' systems, the pass through them in order, the gated norm.

They stand in triton_inputs.py, triton_systems.py, triton_pass.py and triton_finish.py;
triton_launch.py puts them in order. Here is the variant: its contract, and where it runs.

Operands are rounded to the activations' dtype, those of the inverse to fp16; sums, gates and state
are fp32. A chunk's arithmetic knows nothing of the call's length: the last chunk's missing tokens
have k = v = beta = g = 0 and change nothing.
"""

from dataclasses import replace

from torch import Tensor

from kernels.define import Target, variant
from kernels.gated_delta_chunk.reference import MUTATES, fake
from kernels.gated_delta_chunk.triton_launch import Plan, launch
from kernels.gpu import SUPPORT, check, same_dtype

MAX_KEYS = 128  # the widest key head: a program holds whole lines of the state


@variant(
    "gated_delta_chunk",
    "triton",
    fake,
    MUTATES,
    replace(SUPPORT, powers={"d_k": 16, "d_v": 16}, most={"d_k": MAX_KEYS}),
)
def gated_delta_chunk(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    eps: float,
) -> Tensor:
    """As the reference; head widths must be powers of two from 16 on, keys' at most 128."""
    _, d_k, d_v = h.shape
    one = {"qkvz": qkvz, "ba": ba, "conv_weight": conv_weight, "norm_weight": norm_weight}
    check("gated_delta_chunk", 1, **one, a_log=a_log, dt_bias=dt_bias, h=h, tail=tail)
    same_dtype("gated_delta_chunk", **one, tail=tail)
    if any(d < 16 or d & (d - 1) for d in (d_k, d_v)) or d_k > MAX_KEYS:
        raise ValueError(
            "gated_delta_chunk: triton needs head widths that are powers of two from 16 on, keys up"
            f" to {MAX_KEYS}, got {d_k} and {d_v}; use kernel.gated_delta_chunk=reference"
        )
    plan = Plan.of(Target.of(qkvz.device), qkvz.dtype)
    return launch(qkvz, ba, conv_weight, a_log, dt_bias, norm_weight, h, tail, eps, plan)
