"""Logits after repetition, frequency and presence penalties and a bias, by each row's own text.

    x = logits[i, t];  n = times t was written before row i's token;  seen: t stands before it
    x = x / repetition if x > 0 else x * repetition   where seen
    x = x - frequency * n;  x = x - presence          the last where n > 0
    x = x + bias[t]

Row i's token will stand at position + i. The text before it is history[:position] and then what
rows 1 .. i read, drafts that were accepted wherever row i matters: a row becomes what decoding one
token at a time would make of it. Tokens at and past `start` were written, those before it are the
prompt: repetition looks at both, frequency and presence at written ones only. Counts are integers,
and made of the text in every call: a text that is cut needs no other counts to be cut with it.
"""

from kernels.gpu import HAS_TRITON
from kernels.penalize.reference import penalize as reference

if HAS_TRITON:
    from kernels.penalize import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
