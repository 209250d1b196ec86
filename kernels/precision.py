"""The precision that operators compute in: fp32 inside, fp64 where the inputs are fp64."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 if it is that already: so a reference can be its own oracle."""
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
