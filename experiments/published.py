"""Small checkpoints as others publish them: file tensors, config.json, and the numbers that the
format's own library restores. Where that library is too large to depend on, the layout is written
here from its documentation, and the numbers come from the codes before packing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tr.checkpoint.load import Target, Weights
from tr.checkpoint.names import target_table
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4

GROUP = 128


@dataclass
class Published:
    """`restored`: short name -> the library's numbers, of quantised matrices."""

    parts: dict[str, Tensor]
    quantization: dict[str, Any]
    restored: dict[str, Tensor] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)  # further files


Quantise = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]


def lay(published: Published, path: Path, config: Mapping[str, Any]) -> None:
    """A folder of what was published; `config`: the unquantised model's config.json."""
    path.mkdir()
    save_file(published.parts, path / "model.safetensors", metadata={"format": "pt"})
    declared = {"quantization_config": published.quantization} if published.quantization else {}
    (path / "config.json").write_text(json.dumps({**config, **declared}))
    for name, content in published.extra.items():
        (path / name).write_text(content)
    (path / "generation_config.json").write_text('{"eos_token_id": [3]}')


def publish(
    stored: Mapping[str, Tensor],
    chosen: Callable[[str], Quantise | None],
    quantization: Mapping[str, Any],
) -> Published:
    """Every matrix through what `chosen` gives for its name; None: it stays."""
    made = Published({}, dict(quantization))
    for name, tensor in stored.items():
        quantise = chosen(name) if name.endswith(".weight") and tensor.dim() == 2 else None
        if quantise is None:
            made.parts[name] = tensor
            continue
        module = name.removesuffix(".weight")
        parts, made.restored[name] = quantise(module, tensor)
        made.parts |= {f"{module}{part}": t.contiguous() for part, t in parts.items()}
    return made


def body(name: str) -> bool:
    """A matrix of the layers, gates aside."""
    gates = ("in_proj_a.weight", "in_proj_b.weight")
    return ".layers." in name and not name.startswith("mtp") and not name.endswith(gates)


def grouped(weight: Tensor, group: int) -> Tensor:
    return weight.float().unflatten(1, (-1, group))


def symmetric(weight: Tensor, bits: int, group: int, scales: torch.dtype) -> tuple[Tensor, Tensor]:
    """Full range, as AutoRound: the larger side gets the code -2^(bits - 1), so that about half of
    the scales are negative; ranges are 0.97 of the group's, for such as are learned. Signed codes
    [n, k] int8 and scale [n, groups].
    """
    w, half = grouped(weight, group), 2 ** (bits - 1)
    low, high = w.aminmax(dim=-1)
    extreme = torch.where(high > -low, high, low)
    scale = (0.97 * extreme / -half).to(scales)
    codes = (w / scale[..., None].float()).round().clamp(-half, half - 1)
    return codes.to(torch.int8).flatten(1), scale


def asymmetric(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [n, k] and zero points [n, groups] in 0 .. 2^bits - 1, scale [n, groups] fp32."""
    w, top = grouped(weight, group), 2**bits - 1
    low, high = w.aminmax(dim=-1)
    low = low.clamp(max=0)
    scale = ((high.clamp(min=0) - low) / top).half().float()
    zero = (-low / scale).round().clamp(0, top)
    codes = ((w / scale[..., None]) + zero[..., None]).round().clamp(0, top)
    return codes.int().flatten(1), zero.int(), scale


# --- compressed-tensors ---------------------------------------------------------------------------


def compressed(weights: Mapping[str, Any], format: str, scales: torch.dtype) -> Quantise:
    """By the library's own compressor, and restored by it."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(format)

    def quantise(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        state = {"weight": weight, **_parameters(weight, args, scales)}
        packed = compressor.compress(state, scheme)
        restored = compressor.decompress(dict(packed), scheme)["weight"]
        assert restored is not None
        return {f".{part}": t for part, t in packed.items() if t is not None}, restored

    return quantise


def decompressed(parts: Mapping[str, Tensor], module: str, weights: Mapping[str, Any]) -> Tensor:
    """What the library makes of a module's pack-quantized file tensors."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(**weights)
    state = {
        name.removeprefix(f"{module}."): t
        for name, t in parts.items()
        if name.startswith(f"{module}.")
    }
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    restored = compressor.decompress(state, scheme)["weight"]
    assert restored is not None
    return restored


def _parameters(weight: Tensor, args: Any, scales: torch.dtype) -> dict[str, Tensor]:
    n, k = weight.shape
    if args.strategy == "tensor_group":
        whole = 448 * 6 / weight.float().abs().max().reshape(1)
        scale = (grouped(weight, 16).abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
        return {"weight_scale": scale.float(), "weight_global_scale": whole}
    if args.type == "float":
        top = torch.finfo(torch.float8_e4m3fn).max
        if args.strategy == "block":
            rows, columns = args.block_structure
            blocks = weight.float().unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
            return {"weight_scale": (blocks.abs().amax((1, 3)) / top).to(scales)}
        size = weight.float().abs()
        most = size.amax(1, keepdim=True) if args.strategy == "channel" else size.max().reshape(1)
        return {"weight_scale": (most / top).to(scales)}
    group = args.group_size or k
    if args.symmetric:
        return {"weight_scale": symmetric(weight, args.num_bits, group, scales)[1]}
    _, zero, scale = asymmetric(weight, args.num_bits, group)
    half = 2 ** (args.num_bits - 1)
    return {"weight_scale": scale.to(scales), "weight_zero_point": (zero - half).to(torch.int8)}


def integers(bits: int = 4, symmetric: bool = True, group: int | None = GROUP) -> dict[str, Any]:
    size = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, **size}


def ct_config(
    groups: list[tuple[list[str], Mapping[str, Any]]], ignore: list[str], format: str
) -> dict[str, Any]:
    made = {
        f"group_{i}": {"targets": targets, "weights": dict(weights), "format": format}
        for i, (targets, weights) in enumerate(groups)
    }
    common = {"quant_method": "compressed-tensors", "quantization_status": "compressed"}
    return {**common, "format": format, "config_groups": made, "ignore": ignore}


# --- GPTQ and AWQ ---------------------------------------------------------------------------------


def pack_fields(values: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[rows, m] -> int32 [rows, m bits / 32]: value order[i] of a word in its field i."""
    per = 32 // bits
    fields = values.long().unflatten(1, (-1, per))
    if order:
        fields = fields[..., list(order)]
    words = (fields << (bits * torch.arange(per))).sum(-1)
    return words.where(words < 2**31, words - 2**32).int()


def gptq(
    version: int, sym: bool, order: Tensor | None = None, dtype: torch.dtype = torch.float16
) -> Quantise:
    """`order`: the inputs in the order in which groups were cut."""

    def quantise(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        k = weight.shape[1]
        by = torch.arange(k) if order is None else order[order < k]
        codes, zero, scale = asymmetric(weight[:, by], 4, GROUP)
        if sym:
            codes, scale = symmetric(weight[:, by], 4, GROUP, dtype)
            codes, zero = codes.int() + 8, torch.full(scale.shape, 8)
        index = torch.empty(k, dtype=torch.int32)
        index[by] = (torch.arange(k) // GROUP).int()
        back = torch.empty(k, dtype=torch.long)
        back[by] = torch.arange(k)
        codes, scale = codes[:, back], scale.to(dtype)
        each = index.long()
        restored = scale[:, each] * (codes - zero[:, each]).to(dtype)
        written = pack_fields(zero.T, 4)
        if version == 1:  # one word at a time: a zero of 0 borrows from its neighbour
            written = written - 0x11111111
        parts = {"qweight": pack_fields(codes, 4).T, "qzeros": written, "scales": scale.T}
        return {f".{part}": t for part, t in {**parts, "g_idx": index}.items()}, restored

    return quantise


def gptq_config(**changes: Any) -> dict[str, Any]:
    common = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
    return {**common, "sym": True, "checkpoint_format": "gptq", **changes}


def awq(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, zero, scale = asymmetric(weight, 4, GROUP)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    each = torch.arange(weight.shape[1]) // GROUP
    restored = scale.half()[:, each] * (codes - zero[:, each]).half()
    parts = {
        ".qweight": pack_fields(codes.T, 4, order),
        ".qzeros": pack_fields(zero.T, 4, order),
        ".scales": scale.half().T,
    }
    return parts, restored


AWQ_CONFIG = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": GROUP,
    "zero_point": True,
    "version": "gemm",
}


# --- others ---------------------------------------------------------------------------------------


def tokenrush(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    w = grouped(weight, GROUP)
    low, high = w.aminmax(dim=-1)
    scale, low = ((high - low) / 15).bfloat16(), low.bfloat16()
    codes = ((w - low.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 15)
    restored = (codes * scale.float()[..., None] + low.float()[..., None]).flatten(1).bfloat16()
    q = codes.byte().flatten(1)
    packed = q[:, ::2] | (q[:, 1::2] << 4)
    return {".weight.qweight": packed, ".weight.scale": scale, ".weight.mn": low}, restored


def fp8_blocks(powers_of_two: bool) -> Quantise:
    def quantise(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize

        blocks = weight.float().unflatten(1, (-1, GROUP)).unflatten(0, (-1, GROUP))
        scale = blocks.abs().amax((1, 3)) / 448
        if powers_of_two:
            scale = scale.log2().ceil().exp2().to(torch.float8_e8m0fnu)
        q = blocks / scale.float()[:, None, :, None]
        q = q.to(torch.float8_e4m3fn).flatten(2).flatten(0, 1)
        restored = Fp8Dequantize(None)._dequantize_one(q, scale, torch.bfloat16)
        return {".weight": q, ".weight_scale_inv": scale}, restored

    return quantise


def modelopt(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([values, -values])
    w = grouped(weight, 16)
    whole = w.abs().max() / (448 * 6)
    scale = (w.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    real = scale.float() * whole
    codes = (w[..., None] / real[..., None, None] - values).abs().argmin(-1).byte().flatten(1)
    restored = (values[codes.long()].unflatten(1, (-1, 16)) * real[..., None]).flatten(1)
    parts = {
        ".weight": codes[:, ::2] | (codes[:, 1::2] << 4),
        ".weight_scale": scale,
        ".weight_scale_2": whole.reshape(()),
        ".input_scale": torch.tensor(0.01),
    }
    return parts, restored.bfloat16()


# --- what was imported ----------------------------------------------------------------------------


def by_short(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("model."): t for name, t in parts.items()}


def held(loaded: Target, matrices: Mapping[str, Tensor]) -> dict[str, tuple[Any, slice]]:
    """By short name: what holds it, and its rows there."""
    own = Weights(text=loaded.params, mtp=loaded.mtp)
    names = target_table(loaded.config, loaded.mtp is not None).sources
    found = {}
    for key, source in names.items():
        at, node = 0, own
        for step in key.removesuffix(".weight").replace("[", ".").replace("]", "").split("."):
            node = node[int(step)] if isinstance(node, tuple) else getattr(node, step)
        for short in source.names:
            rows = by_short(matrices)[short].shape[0]
            found[short] = (node, slice(at, at + rows))
            at += rows
    return found


def numbers(node: Any, rows: slice, dtype: torch.dtype) -> Tensor:
    if isinstance(node, Int4):
        return node.weight(dtype)[rows]
    return (node.weight if isinstance(node, Dense) else node)[rows]


def differences(
    loaded: Target, published: Published, matrices: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Tensors that are not the library's numbers to the bit: in their own dtype where codes are
    held, rounded once to the model's where numbers are. All of them are looked at.
    """
    where, restored, off = held(loaded, matrices), by_short(published.restored), []
    for short, original in by_short(matrices).items():
        node, rows = where[short]
        right = restored.get(short, original)
        have = numbers(node, rows, right.dtype)
        if not isinstance(node, Int4):
            right = right.to(have.dtype)
        if not torch.equal(have, right.reshape(have.shape)):
            off.append(short)
    return tuple(off)
