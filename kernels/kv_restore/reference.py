"""The definition: decoded in fp32, rounded once."""

import torch
from torch import Tensor

from kernels.codes import decode
from kernels.define import variant


def fake(codes: Tensor, scale: Tensor | None, y: Tensor) -> None:
    return None


@variant("kv_restore", "reference", fake, mutates=("y",))
def kv_restore(codes: Tensor, scale: Tensor | None, y: Tensor) -> None:
    """codes [kv_heads, keys, d], of 4 bits [kv_heads, keys, d / 2], scale fp32 [kv_heads, keys] or
    None; write y [kv_heads, keys, d], of another dtype than the codes.
    """
    if scale is None:
        y.copy_(codes)
    else:
        y.copy_(decode(codes, scale, torch.promote_types(y.dtype, torch.float32)))
