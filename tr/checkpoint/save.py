"""Params into files: the layout that `load` and transformers read, complete or not there at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from shutil import copymode
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tr.checkpoint.files import INDEX, SINGLE, new_folder
from tr.checkpoint.inventory import file_shape, slots
from tr.checkpoint.load import Weights
from tr.checkpoint.metadata import dtype_name
from tr.checkpoint.names import Table, target_table
from tr.model import mtp, text
from tr.model.config import ModelConfig

MAX_SHARD_BYTES = 5 * 10**9


def save_target(
    folder: Path | str,
    config: ModelConfig,
    params: text.Params,
    mtp: mtp.Params | None,
    eos: tuple[int, ...],
    max_shard_bytes: int = MAX_SHARD_BYTES,
    extra: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write config.json, generation_config.json and the weights in the text-only layout.

    A config with a multi-token-prediction layer needs `mtp`. `extra`: further text files by name
    (tokenizer, chat template, model card). See `save_from` for the rest.
    """
    if (mtp is not None) != (config.mtp_layers > 0):
        raise ValueError(
            f"save: the config has {config.mtp_layers} MTP layers, but an MTP head was "
            f"{'not ' if mtp is None else ''}given; make the two agree"
        )
    generation = {"generation_config.json": _json({"eos_token_id": list(eos)})}
    save_from(
        folder,
        Weights(text=params, mtp=mtp),
        target_table(config, mtp is not None),
        {**config.to_hf(), "dtype": dtype_name(params.embed.dtype)},
        max_shard_bytes,
        {**generation, **(extra or {})},
        overwrite,
    )


def save_from(
    folder: Path | str,
    params: Any,
    table: Table,
    config: Mapping[str, Any],
    max_shard_bytes: int = MAX_SHARD_BYTES,
    extra: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the tensors of `table` and `config` as config.json; `overwrite` replaces the folder.

    All is written to a folder beside it, which is renamed at the end, so that an error leaves
    nothing. Tensors outside the table are not saved. A second shard begins past `max_shard_bytes`.
    """
    texts = {"config.json": _json(config), **(extra or {})}
    for name in texts:
        if Path(name).name != name or name in (SINGLE, INDEX):
            raise ValueError(f"save: extra file {name!r} must be a plain name beside the weights")
    shards = _shards(file_tensors(params, table), max_shard_bytes)
    with new_folder(Path(folder), overwrite) as new:
        for name, content in texts.items():
            (new / name).write_text(content, encoding="utf-8")
        for name, parts in zip(_shard_names(len(shards)), shards, strict=True):
            save_file(_on_cpu(parts), new / name, metadata={"format": "pt"})
            copymode(new / "config.json", new / name)  # the writer makes it private
        if len(shards) > 1:
            (new / INDEX).write_text(_index(shards), encoding="utf-8")


def file_tensors(params: Any, table: Table) -> dict[str, Tensor]:
    """File tensors by name: views of the params."""
    have = slots(params)
    parts = {}
    for key, source in table.sources.items():
        slot = have[key]
        for i, rows in enumerate(slot.tensor.split(slot.rows)):
            parts[table.spell(source.names[i])] = rows.reshape(file_shape(slot, source, i))
    return parts


def _on_cpu(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu().contiguous() for name, t in parts.items()}


def _shards(parts: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """The parts in order, grouped so that only a group of one tensor exceeds `limit` bytes."""
    shards: list[dict[str, Tensor]] = [{}]
    room = limit
    for name, t in parts.items():
        if t.nbytes > room and shards[-1]:
            shards.append({})
            room = limit
        shards[-1][name] = t
        room -= t.nbytes
    return shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def _index(shards: list[dict[str, Tensor]]) -> str:
    names = _shard_names(len(shards))
    total = sum(t.nbytes for parts in shards for t in parts.values())
    weight_map = {n: file for file, parts in zip(names, shards, strict=True) for n in parts}
    return _json({"metadata": {"total_size": total}, "weight_map": weight_map})


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
