"""Params into files: the layout that `load` and transformers read, complete or not there at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tr.checkpoint.files import INDEX, SINGLE, new_folder
from tr.checkpoint.inventory import file_shape, slots
from tr.checkpoint.load import Weights
from tr.checkpoint.metadata import dtype_name
from tr.checkpoint.names import Table, target_table
from tr.checkpoint.shards import MAX_BYTES, Shards, to_json
from tr.model import mtp, text
from tr.model.config import ModelConfig


def save_target(
    folder: Path | str,
    config: ModelConfig,
    params: text.Params,
    mtp: mtp.Params | None,
    eos: tuple[int, ...],
    max_shard_bytes: int = MAX_BYTES,
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
    generation = {"generation_config.json": to_json({"eos_token_id": list(eos)})}
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
    max_shard_bytes: int = MAX_BYTES,
    extra: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the tensors of `table` and `config` as config.json; `overwrite` replaces the folder.

    All is written to a folder beside it, which is renamed at the end, so that an error leaves
    nothing. Tensors outside the table are not saved. A second shard begins past `max_shard_bytes`.
    """
    texts = {"config.json": to_json(config), **(extra or {})}
    for name in texts:
        if Path(name).name != name or name in (SINGLE, INDEX):
            raise ValueError(f"save: extra file {name!r} must be a plain name beside the weights")
    parts = file_tensors(params, table)
    with new_folder(Path(folder), overwrite) as new:
        for name, content in texts.items():
            (new / name).write_text(content, encoding="utf-8")
        shards = Shards(new, max_shard_bytes)
        for name, tensor in parts.items():
            shards.add(name, tensor)
        shards.close()


def file_tensors(params: Any, table: Table) -> dict[str, Tensor]:
    """File tensors by name: views of the params."""
    have = slots(params)
    parts = {}
    for key, source in table.sources.items():
        slot = have[key]
        for i, rows in enumerate(slot.tensor.split(slot.rows)):
            parts[table.spell(source.names[i])] = rows.reshape(file_shape(slot, source, i))
    return parts
