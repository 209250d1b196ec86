"""GPTQ: codes packed along the input, scales and zero points transposed; AutoRound writes it too.

qweight [k bits / 32, n] int32: input r 32 / bits + i of an output in field i of word r;
qzeros [groups, n bits / 32]: output c 32 / bits + i in field i; scales [groups, n]; g_idx [k], the
group of each input. weight = (code - zero) * scale in scale's dtype. The first version (gptq)
stores zero - 1, subtracted word by word with the borrows between fields, so that one 32-bit
addition restores it; the second one (gptq_v2) stores zero.
"""

from collections.abc import Mapping
from functools import cache

from torch import Tensor

from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.pack_quantized import group_index
from tr.checkpoint.imports.stored import (
    Format,
    Grid,
    Opened,
    Stored,
    by_codes,
    first,
    nibbles,
    wrong,
)

ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}  # 1 in every field


def _takes(parts: Mapping[str, Entry], declared: Declared) -> bool:
    return "qweight" in parts and declared.method != "awq"


def _complaint(stored: Stored) -> str | None:
    n, k = stored.shape
    declared, bits = stored.declared, stored.declared.bits
    if declared.method != "gptq":
        return f"{stored.name}.qweight: this is GPTQ's or AWQ's, not {declared.method}'s"
    if bits not in ONES:
        return f"{stored.name}: {bits} bits are not read; known: {', '.join(map(str, ONES))}"
    per = 32 // bits
    if k % per or n % per:
        return f"{stored.name}: {n} x {k} does not fill words of {per}"
    if "scales" not in stored.parts:
        return f"{stored.name}.scales is missing"
    groups = stored.entry("scales").shape[0]
    size = k if declared.group in (None, -1) else declared.group
    if groups != -(-k // size):
        return (
            f"{stored.parts['scales']}: config.json declares groups of {declared.group}, and"
            f" {groups} of them are no partition of {k} inputs; correct group_size"
        )
    if declared.reordered and "g_idx" not in stored.parts:
        return (
            f"{stored.name}.g_idx is missing: config.json declares desc_act, and without it the"
            " groups are unknown"
        )
    if k % size and "g_idx" not in stored.parts:
        return f"{stored.name}: {k} inputs are no multiple of the group of {size}"
    listed = wrong(stored, "g_idx", (k,), ("I32", "I64")) if "g_idx" in stored.parts else None
    return first(
        wrong(stored, "qweight", (k // per, n), ("I32",)),
        wrong(stored, "qzeros", (groups, n // per), ("I32",)),
        wrong(stored, "scales", (groups, n), ("F16", "BF16", "F32")),
        listed,
    )


def _zero(stored: Stored, bits: int, plus_one: bool) -> Tensor:
    """Zero points [n, groups]; `plus_one`: stored less one."""
    words = stored.read("qzeros")
    return nibbles(words + ONES[bits] if plus_one else words, bits).T


def _checked(stored: Stored, bits: int) -> Tensor:
    """The zero points, or ValueError where symmetric ones are not in the middle."""
    plus_one, middle = stored.declared.zero != "plain", 2 ** (bits - 1)
    zero = _zero(stored, bits, plus_one)
    if not stored.declared.symmetric or (zero == middle).all():
        return zero
    if (_zero(stored, bits, not plus_one) == middle).all():
        other = "gptq_v2" if plus_one else "gptq"
        raise ValueError(
            f"{stored.parts['qzeros']}: symmetric weights have the zero point {middle}, and by"
            f" config.json's checkpoint_format these are {int(zero[0, 0])}; they follow {other}:"
            " correct checkpoint_format"
        )
    low, high = (int(x) for x in zero.aminmax())
    raise ValueError(
        f"{stored.parts['qzeros']}: config.json declares symmetric weights, whose zero point is"
        f" {middle}, and these range from {low} to {high}; correct sym or checkpoint_format"
    )


def _open(stored: Stored) -> Opened:
    bits = stored.declared.bits
    assert bits is not None
    scale = stored.numbers("scales").T.contiguous()
    index = group_index(stored, "g_idx", scale.shape[1]) if "g_idx" in stored.parts else None
    grid = Grid(scale, _checked(stored, bits), bits, index=index)
    words = cache(lambda: stored.read("qweight"))

    def codes(start: int, stop: int) -> Tensor:
        return nibbles(words()[:, start:stop].T.contiguous(), bits)

    return by_codes(stored, grid, codes, symmetric=bool(stored.declared.symmetric))


FORMAT = Format("gptq", ("qweight", "qzeros", "scales", "g_idx"), _takes, _complaint, _open)
