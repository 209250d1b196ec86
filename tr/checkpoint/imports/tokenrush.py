"""Token Rush's int4: codes, scale and minimum by groups of 128 inputs, beside tokenrush.json.

weight.qweight [n, k / 2] uint8, the even input in the low half; weight.scale and weight.mn
[n, k / 128] bfloat16. weight = code * scale + mn; its engine's kernels round this in three ways,
of which ours is the fused one: once, to bfloat16.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.int4_matmul.layout import GROUP
from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.stored import Format, Grid, Opened, Stored, by_codes, first, wrong


def _takes(parts: Mapping[str, Entry], _: Declared) -> bool:
    return "weight.qweight" in parts


def _complaint(stored: Stored) -> str | None:
    n, k = stored.shape
    size = stored.declared.group or GROUP
    if k % size:
        return f"{stored.name}: {k} inputs are no multiple of the group of {size}"
    complaint = first(
        wrong(stored, "weight.qweight", (n, k // 2), ("U8",)),
        wrong(stored, "weight.scale", (n, k // size), ("BF16",)),
        wrong(stored, "weight.mn", (n, k // size), ("BF16",)),
    )
    if complaint and "expected shape" in complaint:
        return f"{complaint}; tokenrush.json declares groups of {size}"
    return complaint


def _open(stored: Stored) -> Opened:
    scale, minimum = stored.numbers("weight.scale"), stored.numbers("weight.mn")
    grid = Grid(scale, torch.tensor(0), 4, minimum)

    def codes(start: int, stop: int) -> Tensor:
        packed = stored.read("weight.qweight", start, stop)
        return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)

    return by_codes(stored, grid, codes, symmetric=True)


PARTS = ("weight.qweight", "weight.scale", "weight.mn")
FORMAT = Format("tokenrush int4", PARTS, _takes, _complaint, _open)
