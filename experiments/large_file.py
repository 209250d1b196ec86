"""A checkpoint of one large file with random weights, written a block at a time.

Matrices in W4A16 by symmetric groups of 128, negative scales among them, as AutoRound publishes
them; embedding, gates and norms in bfloat16.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from experiments.published import ct_config, integers
from tr.checkpoint.inventory import file_shape, slots
from tr.checkpoint.load import Weights, skeleton
from tr.checkpoint.names import target_table
from tr.model import mtp, text
from tr.model.config import ModelConfig
from tr.nn.formats.matrix import stays

BLOCK = 2**24  # numbers drawn at once
PERIOD = 4  # layers of a kind come around


@dataclass(frozen=True)
class Part:
    """A file tensor: its name, dtype as the format spells it, shape, and how rows are drawn."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    draw: Callable[[tuple[int, ...], torch.Generator], torch.Tensor]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * {"I32": 4, "BF16": 2, "I64": 8}[self.dtype]


def write(folder: Path, shape: ModelConfig, nbytes: int, seed: int) -> tuple[int, int, int]:
    """Fill `folder`: layers as wide as `shape`'s, and as many as it takes to reach `nbytes`.

    Bytes in all, bytes of the largest tensor, layers.
    """
    fixed, period = (size(shape, n) for n in (0, PERIOD))
    layers = max(1, PERIOD * int((nbytes - fixed) / (period - fixed)))
    while size(shape, layers) < nbytes:
        layers += 1
    shape = resized(shape, layers)
    found = parts(shape)
    at, header = 0, {}
    for part in found:
        offsets = [at, at + part.nbytes]
        header[part.name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": offsets}
        at = offsets[1]
    raw, generator = json.dumps(header).encode(), torch.Generator().manual_seed(seed)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for part in found:
            step = max(1, BLOCK // max(1, prod(part.shape[1:])))
            for row in range(0, part.shape[0], step):
                rows = min(step, part.shape[0] - row)
                drawn = part.draw((rows, *part.shape[1:]), generator).contiguous()
                file.write(drawn.view(-1).view(torch.uint8).numpy().tobytes())
    ignore = ["re:.*in_proj_[ab]$"]
    config = ct_config([(["Linear"], integers())], ignore, "pack-quantized")
    (folder / "config.json").write_text(
        json.dumps({**shape.to_hf(), "quantization_config": config})
    )
    (folder / "generation_config.json").write_text('{"eos_token_id": [0]}')
    return at, max(part.nbytes for part in found), shape.layers


def resized(shape: ModelConfig, layers: int) -> ModelConfig:
    """The same with another number of layers."""
    kinds = (shape.layer_types * (layers // shape.layers + 1))[:layers]
    return dataclasses.replace(shape, layer_types=kinds)


def size(shape: ModelConfig, layers: int) -> int:
    return sum(part.nbytes for part in parts(resized(shape, layers)))


def parts(shape: ModelConfig) -> list[Part]:
    """Every file tensor of the model and its multi-token-prediction head."""

    def make(generator: torch.Generator) -> Weights:
        head = mtp.init(shape, generator, torch.bfloat16) if shape.mtp_layers else None
        return Weights(text=text.init(shape, generator, torch.bfloat16), mtp=head)

    have, table = slots(skeleton(make)), target_table(shape, shape.mtp_layers > 0)
    found = []
    for key, source in table.sources.items():
        for i, short in enumerate(source.names):
            dims, name = file_shape(have[key], source, i), table.spell(short)
            module = key.removesuffix(".weight")
            if module == key or stays(have[key].tensor.shape, module):
                found.append(Part(name, "BF16", dims, _normal))
                continue
            n, k = dims
            name = name.removesuffix(".weight")
            found += [
                Part(f"{name}.weight_packed", "I32", (n, k // 8), _words),
                Part(f"{name}.weight_scale", "BF16", (n, k // 128), _normal),
                Part(f"{name}.weight_shape", "I64", (2,), lambda _, __, d=dims: torch.tensor(d)),
            ]
    return found


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return (0.02 * torch.randn(shape, generator=generator)).bfloat16()


def _words(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32).random_(-(2**31), 2**31 - 1, generator=generator)
