"""Int4 matrices as compressed-tensors' pack-quantized, the inverse of its import.

It has integer zero points where int4 has minimums: weight = (code - zero) * scale in bfloat16.
A group fits where its minimum is -zero * scale for a zero of 0 .. 15, to the bit; both then give
the same numbers.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from kernels.int4_matmul import layout
from kernels.int4_matmul.layout import GROUP, ROWS
from tr.nn.formats.int4 import Int4

FORMAT = "pack-quantized"
MIDDLE = 8  # the zero point of symmetric weights
TOP = 15


def zero_points(name: str, scale: Tensor, minimum: Tensor) -> Tensor:
    """Zero points [n, groups] uint8; raises ValueError, by name, where a minimum is none."""
    s, low = scale.float(), minimum.float()
    zero = torch.where(s == 0, float(MIDDLE), (-low / s).round().clamp(0, TOP))
    off = (-zero * s != low).nonzero()
    if len(off):
        row, group = off[0].tolist()
        raise ValueError(
            f"{name}: row {row}, group {group} has the minimum {low[row, group]:g}, which is no"
            f" integer times its scale {s[row, group]:g}, and compressed-tensors stores integer"
            f" zero points ({len(off)} of {zero.numel()} groups here); make the codes with +exp="
            "quantize quant.zero_point=integer, or write numbers: params.to=hf"
        )
    return zero.to(torch.uint8)


def parts(
    name: str, x: Int4, start: int, stop: int, symmetric: bool, block: int
) -> dict[str, Tensor]:
    """File tensors by what follows a module's name, of rows start..stop; so many are unpacked at
    once.
    """
    n, k = stop - start, x.shape[1]
    packed = torch.empty(n, k // 8, dtype=torch.int32)
    scale, minimum = x.scale[start:stop].cpu(), x.minimum[start:stop].cpu()
    for row in range(start, stop, block):
        last = min(row + block, stop)
        packed[row - start : last - start] = words(codes(x, row, last))
    found = {"weight_packed": packed, "weight_scale": scale}
    if not symmetric:
        found["weight_zero_point"] = words_down(zero_points(name, scale, minimum))
    return {**found, "weight_shape": torch.tensor([n, k])}


def codes(x: Int4, start: int, stop: int) -> Tensor:
    """Rows start..stop [rows, k] uint8, on the CPU."""
    first = start // ROWS
    tiles = x.tiles[first : -(-stop // ROWS)].cpu()
    return layout.codes_of(tiles)[start - first * ROWS : stop - first * ROWS]


def words(values: Tensor) -> Tensor:
    """[rows, m] 0 .. 15, m a multiple of 8 -> int32 [rows, m / 8], the first one lowest."""
    pairs = values.unflatten(1, (-1, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).contiguous().view(torch.int32)


def words_down(zero: Tensor) -> Tensor:
    """[n, groups] -> int32 [ceil(n / 8), groups]: packed along the output, filled up with 0."""
    filled = torch.nn.functional.pad(zero, (0, 0, 0, -len(zero) % 8))
    return words(filled.T.contiguous()).T.contiguous()


def declaration(symmetric: bool, coded: Iterable[str], plain: Iterable[str]) -> dict[str, Any]:
    """`quantization_config` for modules by the files' names: `coded` ones and those left `plain`.

    Engines take an output head for no Linear, so a coded one is named.
    """
    heads = ["re:.*lm_head$"] if any(name.endswith("lm_head") for name in coded) else []
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group",
        "group_size": GROUP,
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    group = {
        "targets": ["Linear", *heads],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": FORMAT,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(plain),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
