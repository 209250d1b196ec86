"""The small model as a GGUF file by the `gguf` library: its names, its types, and the changes that
llama.cpp's converter makes.
"""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from tr.model.config import ModelConfig

#: types that the library can only restore: random blocks, whose fp16 fields are made finite
BLOCKS = {Type.Q4_K: (0, 2), Type.Q6_K: (208,), Type.Q5_K: (0, 2), Type.IQ4_XS: (0,)}


def tile(t: Tensor, dim: int, c: ModelConfig, width: int, undo: bool = False) -> Tensor:
    """Value heads [k_heads, each] to tiled order [each, k_heads] along `dim`, or back."""
    each = c.v_heads // c.k_heads
    shape = (each, c.k_heads, width) if undo else (c.k_heads, each, width)
    return t.unflatten(dim, shape).transpose(dim, dim + 1).flatten(dim, dim + 2)


def change(name: str, t: Tensor, c: ModelConfig, undo: bool = False) -> Tensor:
    """What the converter does to a tensor of the publisher, or its inverse."""
    last = name.removesuffix(".weight").rpartition(".")[2]
    if "linear_attn." in name:
        if last in ("in_proj_qkv", "conv1d"):
            before = 2 * c.k_heads * c.d_k
            return torch.cat([t[:before], tile(t[before:], 0, c, c.d_v, undo)])
        if last == "A_log":
            return tile((-t).log() if undo else -t.exp(), 0, c, 1, undo)
        if last in ("in_proj_z", "in_proj_a", "in_proj_b", "dt_bias"):
            return tile(t, 0, c, c.d_v if last == "in_proj_z" else 1, undo)
        return tile(t, 1, c, c.d_v, undo) if last == "out_proj" else t
    if t.dim() == 1:
        return t - 1 if undo else t + 1
    return t


MTP = {
    "mtp.fc": gguf.MODEL_TENSOR.NEXTN_EH_PROJ,
    "mtp.pre_fc_norm_embedding": gguf.MODEL_TENSOR.NEXTN_ENORM,
    "mtp.pre_fc_norm_hidden": gguf.MODEL_TENSOR.NEXTN_HNORM,
    "mtp.norm": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
}


def spell(name: str, layers: int) -> str:
    """GGUF's name of a tensor that the publisher calls `name`."""
    module = name.removesuffix(".weight")
    if module in MTP:
        return gguf.TENSOR_NAMES[MTP[module]].format(bid=layers) + ".weight"
    name = name.replace("mtp.layers.0", f"layers.{layers}").replace("dt_bias", "dt_proj.bias")
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN35, layers + 1)
    full = name if name.startswith("lm_head") else f"model.{name}"
    found = known.get_name(full, try_suffixes=(".weight", ".bias"))
    assert found, name
    return found


def write(
    path: Path, stored: Mapping[str, Tensor], c: ModelConfig, types: Mapping[str, Type]
) -> dict[str, Tensor]:
    """Write `stored`, matrices in the type that `types` has for the end of their names (else Q8_0);
    returns by short name what the library restores, changed back.
    """
    writer = gguf.GGUFWriter(path, "qwen35")
    restored = {}
    for full, tensor in stored.items():
        name = full.removeprefix("model.")
        changed = change(name, tensor.float(), c)
        if name.endswith("conv1d.weight"):
            changed = changed.squeeze(1)
        kind = next((t for end, t in types.items() if name.endswith(end)), Type.Q8_0)
        if changed.dim() == 1 or name.endswith("conv1d.weight"):
            kind = Type.F32
        if kind in BLOCKS:
            data = random_blocks(changed.shape, kind)
        else:
            data = gguf.quants.quantize(changed.contiguous().numpy(), kind)
        writer.add_tensor(spell(name, c.layers), data, raw_dtype=kind)
        back = torch.from_numpy(gguf.quants.dequantize(data, kind).copy()).reshape(changed.shape)
        restored[name] = change(name, back, c, undo=True).reshape(tensor.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return restored


def random_blocks(shape: torch.Size, kind: Type) -> np.ndarray:
    width, size = gguf.GGML_QUANT_SIZES[kind]
    g = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (*shape[:-1], shape[-1] // width, size), generator=g)
    blocks = blocks.byte().numpy()
    for at in BLOCKS[kind]:
        blocks[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)
