"""All rows at once, where the width fills whole vectors; refused otherwise."""

import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.silu_mul.reference import fake

LANES = 64  # elements: a multiple of every vector length torch uses for 16- and 32-bit types


@variant("silu_mul", "tile", fake, support=Support(multiples={"d_ff": LANES}))
def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [rows, 2 d], d a multiple of 64 -> [rows, d]."""
    gate, up = gate_up.chunk(2, -1)
    if gate.shape[1] % LANES:
        raise ValueError(
            f"silu_mul: tile needs a width that is a multiple of {LANES}, got {gate.shape[1]}; "
            "use kernel.silu_mul=reference"
        )
    return F.silu(gate) * up
