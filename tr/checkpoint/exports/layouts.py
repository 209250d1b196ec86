"""What surrounds the weights of an export: config.json, the names, and the files beside it.

A checkpoint that came with its vision tower keeps the publisher's nested config.json, names and
tower; any other one is the text model alone. A draft keeps the config.json that it came with.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tr.checkpoint.exports.write import Export
from tr.checkpoint.imports.plain import BITS
from tr.checkpoint.load import Found
from tr.checkpoint.metadata import dtype_name, read_json
from tr.checkpoint.names import Table, target_canonical, target_table
from tr.checkpoint.shards import to_json

GENERATION = "generation_config.json"
TEXTS = (
    GENERATION,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "LICENSE",
)


def of_target(
    source: Path, found: Found, kind: str, plain: Sequence[str], shard_bytes: int
) -> Export:
    """An export of the checkpoint in `source`, its multi-token-prediction head included."""
    raw = _unquantised(read_json(source / "config.json"))
    dtype, head = found.shapes.text.norm.dtype, found.shapes.mtp is not None
    tower = _tower(found) if "text_config" in raw else ()
    table = target_table(found.config, head)
    own = {"dtype": dtype_name(dtype)}
    if tower:
        table = dataclasses.replace(table, spell=_release_spell)
        inner = {**_unquantised(raw["text_config"]), **own, "mtp_num_hidden_layers": int(head)}
        config = {**raw, **own, "text_config": inner}
    else:
        flat = raw.get("text_config") or raw
        shape = dataclasses.replace(found.config, mtp_layers=int(head))
        config = {**_unquantised(flat), **shape.to_hf(), **own}
    texts = {n: (source / n).read_bytes() for n in TEXTS if (source / n).is_file()}
    texts.setdefault(GENERATION, to_json({"eos_token_id": list(found.eos)}).encode())
    return Export(kind, config, table, dtype, plain, texts, tower, shard_bytes)


def of_draft(
    source: Path,
    table: Table,
    dtype: torch.dtype,
    kind: str,
    plain: Sequence[str],
    shard_bytes: int,
) -> Export:
    """An export of the draft in `source`; as numbers where it has no codes."""
    config = {**_unquantised(read_json(source / "config.json")), "dtype": dtype_name(dtype)}
    return Export(kind, config, table, dtype, plain, {}, (), shard_bytes)


def _unquantised(config: Any) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "quantization_config"}


def _tower(found: Found) -> tuple[str, ...]:
    """The vision tower's file tensors; none where they are stored in codes of their own."""
    names = [n for n in found.plan.skipped if target_canonical(n).startswith("visual.")]
    stored_plain = all(found.files.entries[n].dtype in BITS for n in names)
    return tuple(names) if stored_plain else ()


def _release_spell(short: str) -> str:
    return short if short.startswith(("lm_head.", "mtp.")) else f"model.language_model.{short}"
