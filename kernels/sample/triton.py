"""Cuts, then the best of each block and of the blocks; choices are read on the device.

Without cuts `_best` runs alone (triton_best.py). With cuts four launches before it find, in every
row, the score at which candidates end and the last id that stays among equals: `_peak`, `_bins` and
`_gather` read logits and leave the scores of a few bins (triton_bins.py), `_ends` finds both ends
among them (triton_ends.py). What they count by: triton_cuts.py; noise and keys: triton_parts.py.
Here is the variant: its contract, where it runs, and the room its launches share.
"""

import torch
import triton
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT, check, dependent_launch
from kernels.sample.reference import fake
from kernels.sample.triton_best import launch_best
from kernels.sample.triton_bins import launch_bins
from kernels.sample.triton_ends import launch_ends
from kernels.sample.triton_parts import BLOCK


@variant("sample", "triton", fake, support=SUPPORT)
def sample(
    logits: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    ids: int,
    cuts: bool = True,
) -> Tensor:
    """As the reference, without asking the host for anything."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"sample: rows of logits must be contiguous, got {logits.stride()}")
    check("sample", 1, logits=logits[0], seed=seed)
    if not 0 < ids <= vocab:
        raise ValueError(f"sample: ids must be 1 .. {vocab}, the width of logits, got {ids}")
    blocks = triton.cdiv(ids, BLOCK)
    peak = temperature.new_empty(rows, blocks, dtype=torch.float32)
    edge, last = (position.new_empty(rows, dtype=torch.int32) for _ in range(2))
    overlap = dependent_launch(logits.device)
    options = {"PDL": overlap, "num_warps": 8, "enable_fp_fusion": False, "launch_pdl": overlap}
    if cuts:
        scalars = (temperature, top_k, top_p, min_p)
        bound, found = launch_bins(logits, scalars, peak, ids, options)
        launch_ends(scalars[:3], peak, bound, found, edge, last, ids, options)
    return launch_best(
        logits, position, temperature, min_p, seed, edge, last, peak, ids, cuts, options
    )
