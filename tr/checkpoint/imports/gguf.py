"""GGUF files as llama.cpp's converter writes them, read under the publisher's names.

What the converter changed is undone: norms carry 1 + weight (the gated norm does not), ssm_a is
-exp(A_log), the convolution has no axis of length 1, and value heads are in tiled order: its head
j K + k is head k V + j of the publisher, for K key heads with V value heads each. The library
`gguf` restores numbers in fp32, a block of rows at a time.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tr.checkpoint.files import Entry, read_into
from tr.model.config import ModelConfig

ARCHITECTURE = "qwen35"
SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
WHOLE = {
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "norm.weight",
}
LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
MTP = {  # beside a layer's, in the block after the last layer
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
}


@dataclass(frozen=True)
class Part:
    """How one tensor is restored: its type, and which file row and column each of ours is."""

    type: Any
    rows: Tensor
    columns: Tensor | None
    finish: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Gguf:
    entries: Mapping[str, Entry]
    parts: Mapping[str, Part]
    unlisted: tuple[str, ...] = ()
    restores: tuple[str, ...] = field(default=())

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start..stop in fp32, in the publisher's order and meaning."""
        from gguf import quants

        entry, part = self.entries[name], self.parts[name]
        wanted = part.rows[start:stop]
        width = entry.nbytes // len(part.rows)  # bytes of a row
        packed = torch.empty(len(wanted), width, dtype=torch.uint8)
        at = 0
        for run in torch.tensor_split(wanted, (wanted.diff() != 1).nonzero().flatten() + 1):
            rows = packed[at : at + len(run)]
            read_into(entry.file, entry.start + int(run[0]) * width, rows)
            at += len(run)
        numbers = torch.from_numpy(quants.dequantize(packed.numpy(), part.type).copy())
        if part.columns is not None:
            numbers = numbers[:, part.columns]
        return part.finish(numbers).reshape(len(wanted), *entry.shape[1:])


def is_gguf(folder: Path) -> bool:
    """Whether a folder's weights are in GGUF files alone."""
    return any(folder.glob("*.gguf")) and not any(folder.glob("*.safetensors*"))


def open_gguf(folder: Path, config: ModelConfig) -> Gguf:
    """The one model among a folder's .gguf files, in one file or several."""
    try:
        import gguf
    except ImportError as error:
        raise ValueError(
            f"{folder} holds GGUF files, which the library gguf reads; pip install gguf"
        ) from error
    files = sorted(p for p in folder.glob("*.gguf") if "mmproj" not in p.name)  # no vision
    models = sorted({SPLIT.sub("", p.stem) for p in files})
    if len(models) != 1:
        raise ValueError(
            f"{folder} holds {len(models)} GGUF models ({', '.join(models)}); keep one"
        )
    entries, parts = {}, {}
    for file in files:
        for tensor in _reader(gguf, file, first=file == files[0]).tensors:
            name = publisher_name(str(tensor.name), config.layers)
            if name in entries:
                raise ValueError(f"checkpoint: tensor {tensor.name} is in two files of {folder}")
            shape = tuple(int(n) for n in reversed(tensor.shape))
            if name.endswith("conv1d.weight"):
                shape = (shape[0], 1, shape[1])
            start, nbytes = int(tensor.data_offset), int(tensor.n_bytes)
            kind = f"gguf {tensor.tensor_type.name}"
            entries[name] = Entry(file, shape, kind, start, nbytes)
            parts[name] = _part(name, shape, tensor.tensor_type, config)
    return Gguf(entries, parts, (), tuple({entry.dtype for entry in entries.values()}))


def _reader(gguf: Any, file: Path, first: bool) -> Any:
    """One file; of a model in several, the `first` one alone says what it is."""
    try:
        reader = gguf.GGUFReader(file)
        found = reader.fields["general.architecture"].contents() if first else ARCHITECTURE
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(
            f"checkpoint: {file} is truncated or damaged ({error}); download it again"
        ) from error
    if found != ARCHITECTURE:
        raise ValueError(
            f"checkpoint: {file} is a model of architecture {found}; expected {ARCHITECTURE}"
        )
    return reader


def publisher_name(name: str, layers: int) -> str:
    """The publisher's name of a GGUF tensor; an unknown one as it stands."""
    block = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if block is None:
        return WHOLE.get(name, name)
    i, rest = int(block[1]), block[2]
    if i == layers and rest in MTP:
        return MTP[rest]
    if rest not in LAYER:
        return name
    return f"mtp.layers.0.{LAYER[rest]}" if i == layers else f"layers.{i}.{LAYER[rest]}"


def _part(name: str, shape: tuple[int, ...], type: Any, c: ModelConfig) -> Part:
    rows, columns = torch.arange(shape[0]), None
    last = name.removesuffix(".weight").rpartition(".")[2]
    if "linear_attn." in name:
        before = 2 * c.k_heads * c.d_k
        if last in ("in_proj_qkv", "conv1d"):
            rows = tiled(shape[0], before, c.d_v, c)
        elif last == "in_proj_z":
            rows = tiled(shape[0], 0, c.d_v, c)
        elif last in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"):
            rows = tiled(shape[0], 0, 1, c)
        elif last == "out_proj":
            columns = tiled(shape[1], 0, c.d_v, c)
    finish = _same
    if last == "A_log":
        finish = _log_of_minus
    elif last.endswith("norm") and "linear_attn." not in name or "pre_fc_norm" in last:
        finish = _less_one
    return Part(type, rows, columns, finish)


def tiled(count: int, before: int, width: int, c: ModelConfig) -> Tensor:
    """Where GGUF has each of `count` rows: those of value heads, `width` each, follow `before`."""
    head = torch.arange(c.v_heads)
    each = c.v_heads // c.k_heads
    place = head % each * c.k_heads + head // each
    moved = before + (place[:, None] * width + torch.arange(width)).flatten()
    at = torch.cat([torch.arange(before), moved])
    return at if len(at) == count else torch.arange(count)  # a wrong shape is refused by name


def _same(x: Tensor) -> Tensor:
    return x


def _less_one(x: Tensor) -> Tensor:
    return x - 1


def _log_of_minus(x: Tensor) -> Tensor:
    return (-x).log()
