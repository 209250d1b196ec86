"""Other libraries' kernels for the product of `int4_matmul`, as yardsticks: no step runs them.

To each of them a weight is bfloat16(codes scale + minimum), so that is how exact they can be.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.int4_matmul.layout import GROUP, dequantise, unpack

MIDDLE = 8  # tinygemm's codes are -8..7
K_TILES = 8  # of 16 inputs that lie together in its layout; 2, 4 and 8 exist
BITS = 4


@dataclass(frozen=True)
class Other:
    """`weights(tiles, n)` in its own layout, after which it computes `call(x, *weights)`."""

    weights: Callable[[Tensor, int], list[Any]]
    call: Callable[..., Tensor]
    devices: tuple[str, ...] = ("cpu", "cuda")
    package: str = ""  # that it comes with, beside torch

    def refusal(self, device: torch.device) -> str:
        """Why it cannot run, or an empty string."""
        if device.type not in self.devices:
            return f"needs {' or '.join(self.devices)}, this is {device.type}"
        if self.package and not find_spec(self.package):
            return f"needs the package {self.package} (pip install {self.package})"
        return ""


def dense(tiles: Tensor, n: int) -> list[Any]:
    return [dequantise(tiles, n, torch.bfloat16)]


def tinygemm_weights(tiles: Tensor, n: int) -> list[Any]:
    """Codes in its layout, (scale, zero) bfloat16 [groups, n, 2]: w = (code - 8) scale + zero."""
    codes, scale, minimum = unpack(tiles, n)
    zero = (minimum.float() + MIDDLE * scale.float()).bfloat16()
    pairs = torch.stack([scale, zero], -1).transpose(0, 1).contiguous()
    if tiles.is_cuda:
        two = (codes[:, ::2] << BITS) | codes[:, 1::2]
        return [torch.ops.aten._convert_weight_to_int4pack(two, K_TILES), pairs]
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), K_TILES)
    return [packed, pairs]


def tinygemm(x: Tensor, packed: Tensor, pairs: Tensor) -> Tensor:
    if x.is_cuda:
        return torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, pairs)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, pairs)


def gemlite_weights(tiles: Tensor, n: int) -> list[Any]:
    """Tensors of a layer and its settings: w = code scale + minimum."""
    gemlite = importlib.import_module("gemlite")
    codes, scale, minimum = unpack(tiles, n)
    kind = gemlite.DType.BF16
    layer = gemlite.GemLiteLinearTriton(BITS, GROUP, codes.shape[1], n, kind, kind)
    layer.pack(codes, scale, -minimum / scale)
    return [[t.detach() for t in layer.get_tensor_args()], layer.get_meta_args()]


def gemlite(x: Tensor, tensors: list[Tensor], settings: list[int]) -> Tensor:
    return importlib.import_module("gemlite").forward_functional(x, None, tensors, settings)


OTHERS = {
    "tinygemm": Other(tinygemm_weights, tinygemm),  # torch's own
    "gemlite": Other(gemlite_weights, gemlite, ("cuda",), "gemlite"),
    "dense": Other(dense, F.linear),  # not int4: bfloat16 by the library, for its bytes a second
}
