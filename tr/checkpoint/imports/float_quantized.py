"""compressed-tensors, float-quantized and int-quantized: 8-bit numbers and what scales them.

weight [n, k] float8 or int8; weight_scale one number, [n, 1], [n, groups], or by blocks of
block_structure [ceil(n / rows), ceil(k / columns)]. weight = q * scale in scale's dtype. ModelOpt's
fp8 is the same with one number for all.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.stored import Format, Opened, Stored, first, wrong

QUANTISED = ("F8_E4M3", "F8_E5M2", "I8")


def _takes(parts: Mapping[str, Entry], _: Declared) -> bool:
    return "weight" in parts and "weight_scale" in parts and parts["weight"].dtype in QUANTISED


def _block(stored: Stored) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None where the scales' shape is no such grid."""
    n, k = stored.shape
    scale = stored.entry("weight_scale").shape
    if scale in ((), (1,), (1, 1)):
        return n, k
    if scale in ((n,), (n, 1)):
        return 1, k
    block = stored.declared.block
    if block is None and len(scale) == 2 and scale[0] == n and scale[1] and k % scale[1] == 0:
        block = (1, k // scale[1])
    if block is None or scale != (-(-n // block[0]), -(-k // block[1])):
        return None
    return block


def _complaint(stored: Stored) -> str | None:
    scale = stored.entry("weight_scale")
    if _block(stored) is None:
        return (
            f"{stored.parts['weight_scale']}: {list(scale.shape)} is no grid of scales for"
            f" {list(stored.shape)} with block_structure {stored.declared.block}; correct it"
        )
    if "weight_zero_point" in stored.parts:
        return f"{stored.parts['weight_zero_point']}: zero points of 8-bit weights are not read"
    return first(
        wrong(stored, "weight", stored.shape, QUANTISED),
        wrong(stored, "weight_scale", scale.shape, ("F16", "BF16", "F32")),
    )


def spread(scale: Tensor, block: tuple[int, int], start: int, stop: int, k: int) -> Tensor:
    """Scales of a grid of blocks, for rows start..stop and k columns."""
    rows = torch.arange(start, stop) // block[0]
    return scale[rows].repeat_interleave(block[1], 1)[:, :k]


def _open(stored: Stored) -> Opened:
    block = _block(stored)
    assert block is not None
    scale = stored.numbers("weight_scale")
    scale = scale.reshape(-(-stored.shape[0] // block[0]), -1)

    def weight(start: int, stop: int) -> Tensor:
        q = stored.read("weight", start, stop).float()
        return (q * spread(scale.float(), block, start, stop, q.shape[1])).to(scale.dtype)

    return Opened(weight)


PARTS = ("weight", "weight_scale", "weight_zero_point")
FORMAT = Format("float-quantized", PARTS, _takes, _complaint, _open)
