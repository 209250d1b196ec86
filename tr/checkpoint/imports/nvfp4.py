"""NVFP4: two 4-bit floats (e2m1) a byte, the even input in the low half, scaled by 16 inputs.

compressed-tensors: weight_packed, weight_scale e4m3, weight_global_scale that divides:
weight = q * (scale / global) in fp32, rounded to bfloat16.
ModelOpt: weight, weight_scale e4m3, weight_scale_2 that multiplies: q * (scale * scale_2) in fp32,
rounded to the model's dtype. Some of its writers leave the scales' sign bit set, which means
nothing there.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.stored import Format, Opened, Stored, first, wrong

GROUP = 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(packed: Tensor) -> Tensor:
    """Bytes [rows, k / 2] -> numbers [rows, k] fp32."""
    table = torch.tensor([*VALUES, *(-v for v in VALUES)])
    return table[torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()]


def _wrong(stored: Stored, packed: str, whole: str) -> str | None:
    n, k = stored.shape
    if k % GROUP:
        return f"{stored.name}: {k} inputs are no multiple of the group of {GROUP}"
    if stored.declared.group not in (None, GROUP):
        return (
            f"{stored.name}: config.json declares groups of {stored.declared.group}; NVFP4 has"
            f" {GROUP}"
        )
    size = stored.entry(whole).shape if whole in stored.parts else ()
    return first(
        wrong(stored, packed, (n, k // 2), ("U8",)),
        wrong(stored, "weight_scale", (n, k // GROUP), ("F8_E4M3",)),
        wrong(stored, whole, size if size in ((), (1,)) else (1,), ("F32",)),
    )


def _open(stored: Stored, packed: str, scale: Tensor, dtype: torch.dtype) -> Opened:
    def weight(start: int, stop: int) -> Tensor:
        q = decode(stored.read(packed, start, stop)).unflatten(1, (-1, GROUP))
        return (q * scale[start:stop, :, None]).flatten(1).to(dtype)

    return Opened(weight)


def _open_packed(stored: Stored) -> Opened:
    whole = stored.numbers("weight_global_scale").reshape(())
    if not float(whole) > 0:
        raise ValueError(
            f"{stored.parts['weight_global_scale']}: expected a positive number, found"
            f" {float(whole):g}"
        )
    scale = stored.numbers("weight_scale").float() / whole
    return _open(stored, "weight_packed", scale, torch.bfloat16)


def _open_modelopt(stored: Stored) -> Opened:
    scale = stored.numbers("weight_scale").float().abs()
    scale = scale * stored.numbers("weight_scale_2").reshape(())
    return _open(stored, "weight", scale, stored.dtype)


def _takes_packed(parts: Mapping[str, Entry], _: Declared) -> bool:
    return (
        "weight_packed" in parts
        and parts["weight_packed"].dtype == "U8"
        and "weight_global_scale" in parts
    )


def _takes_modelopt(parts: Mapping[str, Entry], _: Declared) -> bool:
    return "weight" in parts and parts["weight"].dtype == "U8" and "weight_scale_2" in parts


PACKED = Format(
    "nvfp4-pack-quantized",
    ("weight_packed", "weight_scale", "weight_global_scale"),
    _takes_packed,
    lambda stored: _wrong(stored, "weight_packed", "weight_global_scale"),
    _open_packed,
)
MODELOPT = Format(
    "modelopt nvfp4",
    ("weight", "weight_scale", "weight_scale_2"),
    _takes_modelopt,
    lambda stored: _wrong(stored, "weight", "weight_scale_2"),
    _open_modelopt,
)
