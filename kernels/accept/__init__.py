"""The end of a step: how many of its rows stay, and what that changes.

Row 0 read the anchor at position `pos`, row i draft i - 1 behind it; `chosen[i]` is what the target
puts after row i. Rows are kept as long as each draft equals what was chosen before it, so

    count = 1 + how many leading drafts are right,

cut where the text ends: no row stays that reads an end token, or stands at the last position. No
row at all is kept where the anchor does, or where a logit of a real token is no finite number.
"""

from kernels.accept.reference import accepted, finite, over
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.accept import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["accepted", "finite", "over"]
