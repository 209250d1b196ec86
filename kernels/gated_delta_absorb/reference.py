"""The definition: record by record."""

import torch
from torch import Tensor

from kernels.define import variant

MUTATES = ("h", "tail")


def fake(
    h: Tensor,
    tail: Tensor,
    past_x: Tensor,
    past_k: Tensor,
    past_u: Tensor,
    past_decay: Tensor,
    pending: int,
) -> None:
    return None


@variant("gated_delta_absorb", "reference", fake, MUTATES)
def gated_delta_absorb(
    h: Tensor,
    tail: Tensor,
    past_x: Tensor,
    past_k: Tensor,
    past_u: Tensor,
    past_decay: Tensor,
    pending: int,
) -> None:
    """Overwritten: h fp32 [v_heads, d_k, d_v] and tail [width - 1, channels].

    Records: past_x [capacity, channels], past_k fp32 [capacity, k_heads, d_k], past_u fp32
    [capacity, v_heads, d_v], past_decay fp32 [capacity, v_heads]; `pending` of them count.
    """
    group = h.shape[0] // past_k.shape[1]
    for i in range(pending):
        k = past_k[i].repeat_interleave(group, 0)
        h.mul_(past_decay[i][:, None, None])
        h.add_(k[:, :, None] * past_u[i][:, None, :])
    if pending:
        window = torch.cat([tail, past_x[:pending]])
        tail.copy_(window[-tail.shape[0] :])
