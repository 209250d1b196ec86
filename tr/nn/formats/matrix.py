"""What a layer holds as a weight matrix: any format with `splits` and these methods.

`sequence` takes many tokens; the others a few rows: `step` plain ones, `project` and
`project_beside` rows as their producer left them, `gate_up` and `add_norm` with what follows.
"""

from collections.abc import Callable, Sequence

import torch

from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4

Matrix = Dense | Int4

#: makes a random matrix: (splits, d_in, generator, dtype), as `formats.dense.dense`
Make = Callable[[Sequence[int], int, torch.Generator, torch.dtype], Matrix]
