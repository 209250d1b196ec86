"""Caches of 8 and 4 bits on Hopper: codes are converted once, in registers, for all rows of a call.

How keys are dealt to programs (gluon_plan.py), what scales do (gluon_scores.py) and how partial
results are folded (gluon_fold.py) is as in triton.py and fold.py, save that a value's scale enters
its weight as a power of two, and that sums over keys and over partial results are trees. The kernel
is in gluon_kernel.py, how it reads codes in gluon_codes.py; here stands which calls it takes.
"""

from dataclasses import replace

from torch import Tensor

from kernels.attention_decode.gluon_kernel import launch
from kernels.attention_decode.gluon_plan import BLOCK, D, plan
from kernels.attention_decode.reference import fake
from kernels.codes import format_of
from kernels.define import variant
from kernels.gpu import SUPPORT, check, same_dtype


@variant(
    "attention_decode",
    "gluon",
    fake,
    support=replace(
        SUPPORT,
        devices=("cuda",),
        capability=(9, 0),
        below=(10, 0),
        powers={"d_head": D},
        most={"d_head": D, "4-bit codes": 0},  # in a short text their rotation takes 19 to 320 us
        multiples={"capacity": BLOCK},
        narrow=True,
    ),
)
def attention_decode(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """As triton, for caches of 8 and 4 bits and heads of 256 dims."""
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    check("attention_decode", rows, q=q, gate=gate, k_cache=k_cache, v_cache=v_cache)
    same_dtype("attention_decode", q=q, gate=gate)
    form = format_of("attention_decode", q, k_cache, v_cache, k_scale, v_scale)
    if form == "plain" or d != D or heads % kv_heads or capacity % BLOCK:
        raise ValueError(
            f"attention_decode: gluon needs a cache of 8 or 4 bits, heads of {D} dims in whole"
            f" groups and a capacity that is a multiple of {BLOCK}, got {k_cache.dtype}, {heads} of"
            f" {d} over {kv_heads} and {capacity}; use kernel.attention_decode=triton"
        )
    chosen = plan(q.device, kv_heads, rows * (heads // kv_heads))
    return launch(q, gate, k_cache, v_cache, pos, chosen, form, k_scale, v_scale)
