"""The next token of each row: greedy, or drawn with noise that depends on seed, position and token.

Because the noise is a pure function of (seed, position, token), a run that verifies eight rows at
once draws exactly what a run of single rows draws: sampled speculation equals sampled decoding.

    key_i = mix(seed_i ^ mix(position + i));  bits = mix(mix(key_0 ^ token) + key_1)
    v = min((bits + 0.5) / 2^32, 1 - 2^-24);  token = argmax(logits / T - log(-log1p(-v)))

over the candidates that min-p, then top-k, then top-p leave, each cut of what the one before left.
Top-p keeps the shortest run of the likeliest that has this share of the mass, and never none.
Integers are 32-bit and wrap; ties go to the lowest id. Every row is worked on alone, so its bits
cannot depend on others.
"""

from kernels.gpu import HAS_TRITON
from kernels.sample.reference import argmax_lowest, gumbel, mix, survivors
from kernels.sample.reference import sample as reference

if HAS_TRITON:
    from kernels.sample import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["argmax_lowest", "gumbel", "mix", "reference", "survivors"]
