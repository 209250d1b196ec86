"""What a layer holds as a weight matrix: any format with `splits` and these methods.

`sequence` takes many tokens, a prompt's with operators; the others a few rows: `step` plain ones,
`project` and `project_beside` rows as their producer left them, `gate_up` and `add_norm` with what
follows.
"""

from collections.abc import Callable, Sequence

import torch

from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.table4 import Table4

Matrix = Dense | Int4 | Table4
SMALLEST = 128  # output or input width below which a matrix is not worth converting
KEPT = ("in_ba",)  # gates of the recurrence: 0.35 % of the bytes, and its decay depends on them

#: makes a random matrix: (splits, d_in, generator, dtype), as `formats.dense.dense`
Make = Callable[[Sequence[int], int, torch.Generator, torch.dtype], Matrix]


def stays(shape: Sequence[int], name: str = "") -> bool:
    """Whether the matrix `name` is small or one of KEPT, and so is held as numbers."""
    return min(shape) < SMALLEST or name.rpartition(".")[2] in KEPT
