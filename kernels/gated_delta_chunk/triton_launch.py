"""The four launches in order, the scratch between them, and the plan they follow.

A caller may choose the plan; what a card gets by default is set here. A plan's chunk is numerics,
and so are columns where they change the products' instructions; loads in flight change no bit.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.define import Target
from kernels.gated_delta_chunk.triton_finish import launch_finish
from kernels.gated_delta_chunk.triton_inputs import launch_inputs
from kernels.gated_delta_chunk.triton_pass import launch_pass
from kernels.gated_delta_chunk.triton_systems import launch_systems


@dataclass(frozen=True)
class Plan:
    """Tokens of a chunk (a divisor of 64), columns of the state to a program, loads in flight."""

    chunk: int
    columns: int
    stages: int

    @staticmethod
    def of(target: Target, dtype: torch.dtype) -> "Plan":
        """Hopper's products have 64 lines, and its tiles fit three times.

        Other cards multiply by 16 lines and have a third of the memory. fp32 is for the
        interpreter: elsewhere it runs, in registers that spill.
        """
        if target.type != "cuda":
            return Plan(chunk=64, columns=64, stages=1)
        if dtype.itemsize > 2:
            return Plan(chunk=16, columns=16, stages=1)
        if target.capability[0] == 9:
            return Plan(chunk=64, columns=64, stages=3)
        return Plan(chunk=16, columns=32, stages=3)


def launch(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    eps: float,
    plan: Plan,
) -> Tensor:
    """Scratch: per token, all of q, k and v, and 2 chunk + 2 values per value head."""
    v_heads, d_k, d_v = h.shape
    tokens, (channels, width) = qkvz.shape[0], conv_weight.shape
    k_heads = (channels - v_heads * d_v) // (2 * d_k)
    n = plan.chunk
    chunks = triton.cdiv(tokens, n)
    columns = min(plan.columns, d_v)
    qk = qkvz.new_empty(2, k_heads, chunks * n, d_k)
    v = qkvz.new_empty(chunks, v_heads, d_v, n)
    inverse, inner = (qkvz.new_empty(chunks, v_heads, n, n) for _ in range(2))
    decay = h.new_empty(chunks, v_heads, 2, n)
    y = qkvz.new_empty(tokens, v_heads * d_v)
    heads = {"K_HEADS": k_heads, "V_HEADS": v_heads, "D_K": d_k, "D_V": d_v, "CHUNK": n}
    launch_inputs(qkvz, tail, conv_weight, qk, v, heads)
    launch_systems(qkvz, ba, a_log, dt_bias, tail, qk, inverse, inner, decay, heads, width)
    launch_pass(qk, v, inverse, inner, decay, h, y, heads, columns, plan.stages)
    launch_finish(qkvz, norm_weight, y, eps, channels, v_heads, d_v)
    return y
