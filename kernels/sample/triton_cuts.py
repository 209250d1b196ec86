"""What cuts go by: their settings, the mass of a score, its bin, and what min-p leaves.

Masses are 64-bit integers, exp(score - top) in steps of 2^-40, so that they add up to the same sum
in any order: no cut depends on which block was first, nor a row on others. That must stay. Bins
decide how much there is to look at, not what is found there, so their number and width may change.
"""

import triton
import triton.language as tl

BINS = 256  # the last counts what cannot stay and is not kept


@triton.jit
def settings(temperature_ptr, top_k_ptr, top_p_ptr, ids):
    """Temperature, top_k or 0 where it keeps all, top_p."""
    k = tl.load(top_k_ptr)
    k = tl.where(k < ids, k, 0).to(tl.int32)
    return tl.load(temperature_ptr).to(tl.float32), k, tl.load(top_p_ptr).to(tl.float32)


@triton.jit
def weight_of(score, top):
    """exp(score - top) in steps of 2^-40; 0 for -inf."""
    return (tl.exp(score - top) * 1099511627776.0).to(tl.int64)


@triton.jit
def bin_of(score, top, scale, BINS: tl.constexpr):
    """Bins 0, 1, .. go down from the top; BINS - 2 holds all the rest."""
    return tl.minimum(
        tl.maximum((tl.minimum((top - score) * scale, BINS)).to(tl.int32), 0), BINS - 2
    )


@triton.jit
def is_alive(score, top, least, real):
    """What min-p leaves; -inf is never drawn where there is anything else."""
    floor = tl.where(least > 0.0, tl.minimum(least, 1.0), -1.0)
    return (tl.exp(score - top) >= floor) & real & (score > float("-inf"))


@triton.jit
def top_and_scale(peak_ptr, row, heat, k, p, ids, blocks, BLOCKS: tl.constexpr, BINS: tl.constexpr):
    """The best score of a row, and bins per unit of score such that the cuts end within the bins.

    Every block's best is among the best `blocks`; and what lies log(ids / (1 - p)) below the top
    weighs less than 1 - p altogether.
    """
    block = tl.arange(0, BLOCKS)
    peaks = tl.load(peak_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    top = tl.max(peaks, axis=0) / heat
    lowest = tl.min(tl.where(block < blocks, peaks, float("inf")), axis=0) / heat
    depth = tl.where(k <= blocks, top - lowest, 40.0)
    depth = tl.where(k > 0, depth, tl.log(ids / tl.maximum(1.0 - p, 1e-9)) + 0.01)
    depth = tl.where(depth < 1e30, depth, 40.0)
    return top, (BINS - 2.5) / tl.maximum(depth, 1e-6)
