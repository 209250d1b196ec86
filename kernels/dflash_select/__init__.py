"""From a DFlash 2 block to its tokens: each row's best candidates, and a path through them.

`dflash_top` takes each row's best logits. `dflash_select` walks: with candidates C_k of logits U_k,

    S_k(a, b) = U_k(b) + sum_r A[a, r] h_k[r] B[b, r];  d_k = argmax_b S_k(d_{k-1}, b), b in C_k

where d_0 is the anchor; sampled, T times the target's own noise at that position joins in.
Ties go to the lowest id among logits, to the candidate that stands first on a path.
"""

from kernels.dflash_select.reference import dflash_select as reference
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.dflash_select import triton as _triton  # noqa: F401  (registers the variants)

__all__ = ["reference"]
