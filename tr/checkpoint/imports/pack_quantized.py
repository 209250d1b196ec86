"""compressed-tensors, pack-quantized: integers of 1..8 bits in 32-bit words, along the input.

weight_packed [n, ceil(k bits / 32)]: code i of a row at its bit i * bits, offset by 2^(bits - 1).
weight_zero_point, where asymmetric, the same along the output: [ceil(n bits / 32), groups].
weight_scale [n, groups] may be negative. weight = (code - zero) * scale in scale's dtype.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
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

SCALES = ("F16", "BF16", "F32")


def _takes(parts: Mapping[str, Entry], _: Declared) -> bool:
    return "weight_packed" in parts and parts["weight_packed"].dtype == "I32"


def _words(count: int, bits: int) -> int:
    return -(-count * bits // 32)


def _bits(stored: Stored) -> int:
    """Declared, or the width whose words fill a row."""
    if stored.declared.bits is not None:
        return stored.declared.bits
    return stored.entry("weight_packed").shape[-1] * 32 // stored.shape[1]


def _complaint(stored: Stored) -> str | None:
    n, k = stored.shape
    bits, declared = _bits(stored), stored.declared
    if not 1 <= bits <= 8:
        return f"{stored.name}: expected 1 to 8 bits, got {bits}"
    if "weight_scale" not in stored.parts:
        return f"{stored.name}.weight_scale is missing"
    scale = stored.entry("weight_scale").shape
    groups = scale[1] if len(scale) == 2 else 1
    expected = {None: groups, -1: 1}.get(declared.group, 0) or k / (declared.group or 1)
    if scale not in ((n, groups), (n,), (1,)) or groups < 1 or k % groups:
        return (
            f"{stored.parts['weight_scale']}: expected shape [{n}, a divisor of {k}],"
            f" found {list(scale)}"
        )
    if groups != expected:
        return (
            f"{stored.parts['weight_scale']}: config.json declares groups of {declared.group}, and"
            f" {list(scale)} means {k // groups}; correct group_size"
        )
    packed = wrong(stored, "weight_packed", (n, _words(k, bits)), ("I32",))
    packed = first(packed, wrong(stored, "weight_scale", scale, SCALES))
    if "weight_zero_point" in stored.parts:
        if declared.symmetric:
            return f"{stored.parts['weight_zero_point']}: config.json declares symmetric weights"
        shape = (_words(n, bits), groups)
        return first(packed, wrong(stored, "weight_zero_point", shape, ("I32",)))
    if declared.symmetric is False:
        return f"{stored.name}.weight_zero_point is missing: config.json declares asymmetric ones"
    if "weight_g_idx" in stored.parts:
        return first(packed, wrong(stored, "weight_g_idx", (k,), ("I32", "I64")))
    if declared.reordered:
        return (
            f"{stored.name}.weight_g_idx is missing: config.json declares groups that are reordered"
            " by activation (actorder), and without it the groups are unknown"
        )
    return packed


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """Rows of little-endian words [rows, w] int32 -> their first `count` fields, uint8."""
    if 32 % bits == 0:
        return nibbles(words, bits)[:, :count]
    at = bits * torch.arange(count)
    word, shift = at // 32, at % 32
    wide = words.long() & 0xFFFFFFFF
    above = torch.cat([wide[:, 1:], wide.new_zeros(len(wide), 1)], 1)
    both = wide[:, word] | (above[:, word] << 32)
    return ((both >> shift) & (2**bits - 1)).to(torch.uint8)


def _open(stored: Stored) -> Opened:
    n, k = stored.shape
    bits = _bits(stored)
    if "weight_shape" in stored.parts:
        shape = tuple(stored.read("weight_shape").tolist())
        if shape != stored.shape:
            raise ValueError(
                f"{stored.parts['weight_shape']}: expected {[n, k]}, found {list(shape)}; use the"
                " config.json that belongs to these weights"
            )
    scale = stored.numbers("weight_scale").reshape(-1, 1)
    scale = scale.reshape(n, -1) if len(scale) > 1 else scale.expand(n, 1)
    zero = torch.tensor(2 ** (bits - 1))
    if "weight_zero_point" in stored.parts:
        zero = unpack(stored.read("weight_zero_point").T.contiguous(), bits, n).T
    index = None
    if "weight_g_idx" in stored.parts:
        index = group_index(stored, "weight_g_idx", scale.shape[1])
    grid = Grid(scale, zero, bits, index=index)

    def codes(start: int, stop: int) -> Tensor:
        return unpack(stored.read("weight_packed", start, stop), bits, k)

    return by_codes(stored, grid, codes, symmetric=not zero.dim())


def group_index(stored: Stored, part: str, groups: int) -> Tensor | None:
    """The group of each input, None where they are equal runs in order."""
    index = stored.read(part).long()
    if not (0 <= int(index.min()) and int(index.max()) < groups):
        raise ValueError(f"{stored.parts[part]} names groups outside 0 .. {groups - 1}")
    if torch.equal(index, torch.arange(len(index)) // (len(index) // groups)):
        return None
    return index


PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
FORMAT = Format("pack-quantized", PARTS, _takes, _complaint, _open)
