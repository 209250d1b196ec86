"""Our own table weights: codes, a byte by group of 32 inputs, a power of two by output row.

weight.codes [n, k / 2] uint8, the even input in the low half; weight.groups [n, k / 32] uint8;
weight.exponent [n] int8. What they mean is in kernels/table4_matmul/layout.py, and stated by
quantization_config; they are held as they are stored.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernels.table4_matmul import layout
from kernels.table4_matmul.layout import GROUP, LEAST, UNIT
from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.report import Held
from tr.checkpoint.imports.stored import Format, Opened, Stored, first, wrong
from tr.nn.formats import table4
from tr.nn.formats.table4 import Table4

PARTS = ("codes", "groups", "exponent")  # of a weight


def tabled(stored: Sequence[Stored]) -> bool:
    """Whether all of a stack are of this format."""
    return all(one.format is FORMAT for one in stored)


def pack(stored: Sequence[Stored], device: torch.device | str) -> tuple[Table4, tuple[Held, ...]]:
    """The stack by its own codes; see `tabled`."""
    report = tuple(Held(one.name, FORMAT.name, "exact", one.nbytes) for one in stored)
    codes, groups, exponent = (
        torch.cat(parts).to(device) for parts in zip(*map(_read, stored), strict=True)
    )
    return table4.pack(codes, groups, exponent, [one.shape[0] for one in stored]), report


def _read(stored: Stored, start: int = 0, stop: int | None = None) -> tuple[Tensor, ...]:
    """Codes [rows, k], group bytes and exponents of rows start..stop."""
    halves, groups, exponent = (stored.read(f"weight.{part}", start, stop) for part in PARTS)
    if (exponent.to(torch.int16).abs() > -LEAST).any():
        raise ValueError(
            f"{stored.parts['weight.exponent']} holds powers of two beyond {LEAST} .. {-LEAST};"
            " download it again"
        )
    return torch.stack([halves & 15, halves >> 4], -1).flatten(-2), groups, exponent


def _takes(parts: Mapping[str, Entry], _: Declared) -> bool:
    return "weight.codes" in parts


def _complaint(stored: Stored) -> str | None:
    n, k = stored.shape
    if stored.declared.method != "table4":
        return f"{stored.name}.weight.codes: this is table4's, not {stored.declared.method}'s"
    if k % UNIT:
        return f"{stored.name}: {k} inputs are no multiple of {UNIT}, as table4 needs"
    return first(
        wrong(stored, "weight.codes", (n, k // 2), ("U8",)),
        wrong(stored, "weight.groups", (n, k // GROUP), ("U8",)),
        wrong(stored, "weight.exponent", (n,), ("I8",)),
    )


def _open(stored: Stored) -> Opened:
    def weight(start: int, stop: int) -> Tensor:
        codes, groups, exponent = _read(stored, start, stop)
        return layout.dequantise(layout.pack(codes, groups), exponent, torch.bfloat16)

    return Opened(weight)


FORMAT = Format("table4", tuple(f"weight.{part}" for part in PARTS), _takes, _complaint, _open)
