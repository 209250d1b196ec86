"""AWQ, the gemm order: 4-bit codes and zero points packed along the output, in an order of lanes.

qweight [k, n / 8] int32: output 8 c + j in field PLACE[j] of word c; qzeros [groups, n / 8] the
same; scales [groups, n]. weight = (code - zero) * scale in scale's dtype.
"""

from collections.abc import Mapping
from functools import cache

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

PLACE = (0, 4, 1, 5, 2, 6, 3, 7)


def _takes(parts: Mapping[str, Entry], declared: Declared) -> bool:
    return "qweight" in parts and declared.method == "awq"


def _complaint(stored: Stored) -> str | None:
    n, k = stored.shape
    declared = stored.declared
    if declared.bits not in (None, 4):
        return f"{stored.name}: AWQ of {declared.bits} bits is not read; known: 4"
    size = k if declared.group in (None, -1) else declared.group
    if n % 8 or k % size:
        return f"{stored.name}: {n} x {k} does not divide into words of 8 and groups of {size}"
    shape = k // size, n // 8
    complaint = first(
        wrong(stored, "qweight", (k, n // 8), ("I32",)),
        wrong(stored, "qzeros", shape, ("I32",)),
        wrong(stored, "scales", (k // size, n), ("F16", "BF16", "F32")),
    )
    if complaint and "expected shape" in complaint:
        return f"{complaint}; config.json declares groups of {declared.group}"
    return complaint


def _unpack(words: Tensor) -> Tensor:
    """Words [rows, w] int32 -> [rows, 8 w] uint8, outputs in order."""
    fields = nibbles(words, 4).unflatten(-1, (-1, 8))
    return fields[..., torch.tensor(PLACE)].flatten(-2)


def _open(stored: Stored) -> Opened:
    scale = stored.numbers("scales").T.contiguous()
    grid = Grid(scale, _unpack(stored.read("qzeros")).T, 4)
    words = cache(lambda: stored.read("qweight"))

    def codes(start: int, stop: int) -> Tensor:
        first, last = start // 8, -(-stop // 8)
        found = _unpack(words()[:, first:last])
        return found[:, start - 8 * first : stop - 8 * first].T.contiguous()

    return by_codes(stored, grid, codes, symmetric=False)


FORMAT = Format("awq", ("qweight", "qzeros", "scales"), _takes, _complaint, _open)
