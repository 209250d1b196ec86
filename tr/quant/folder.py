"""A quantised model as a checkpoint folder that `tr.checkpoint.load` reads without a loss.

Int4 matrices in Token Rush's layout, which has room for a scale and a minimum of each group: codes
[n, k / 2] uint8, the even input in the low half, beside bfloat16 scale and minimum; tokenrush.json
lists them. Those of a table as codes, group bytes and exponents, which config.json's
quantization_config lists (checkpoint/imports/table4.py). Everything else under its plain name.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.int4_matmul.layout import GROUP
from tr.checkpoint.imports.declared import TABLE4
from tr.checkpoint.imports.table4 import PARTS
from tr.checkpoint.load import Weights
from tr.checkpoint.metadata import dtype_name
from tr.checkpoint.names import Source, Table, target_table
from tr.checkpoint.save import file_tensors, save_from
from tr.model import mtp, text
from tr.model.config import ModelConfig
from tr.nn.formats import int4, table4
from tr.nn.formats.int4 import Int4
from tr.quant.numbers import CODED
from tr.tree import tensors

SHARD_BYTES = 4 * 2**30


def save_target(
    folder: Path,
    config: ModelConfig,
    params: text.Params,
    head: mtp.Params | None,
    eos: tuple[int, ...],
    recipe: Mapping[str, Any],
    extra: Mapping[str, str],
    overwrite: bool = False,
) -> None:
    """`recipe` goes where matrices are listed; `extra`: further text files, as a tokenizer's."""
    tied = config.tie_embeddings and params.lm_head is None
    config = dataclasses.replace(config, tie_embeddings=tied, mtp_layers=int(head is not None))
    table = target_table(config, head is not None)
    generation = json.dumps({"eos_token_id": list(eos)}, indent=2)
    save(
        folder,
        Weights(text=params, mtp=head),
        table,
        {**config.to_hf(), "dtype": dtype_name(params.embed.dtype)},
        recipe,
        {"generation_config.json": f"{generation}\n", **extra},
        overwrite,
    )


def save(
    folder: Path,
    params: Any,
    table: Table,
    config: Mapping[str, Any],
    recipe: Mapping[str, Any],
    extra: Mapping[str, str],
    overwrite: bool = False,
) -> None:
    """The tensors of `table`; see `tr.checkpoint.save.save_from`."""
    parts, quantised, tabled = packed_tensors(params, table)
    plain = {key: s for key, s in table.sources.items() if key in _dense(params, table)}
    parts |= file_tensors(params, dataclasses.replace(table, sources=plain))
    own = Table({f"['{name}']": Source((name,)) for name in parts}, str, str)
    if tabled:
        note = {"quant_method": "table4", "bits": 4, **TABLE4, "modules": tabled, "recipe": recipe}
        config = {**config, "quantization_config": note}
    if quantised or not tabled:
        note = {"format": "int4", "group": GROUP, "quantized": quantised, **recipe}
        extra = {**extra, "tokenrush.json": json.dumps(note, indent=2) + "\n"}
    save_from(folder, parts, own, config, SHARD_BYTES, extra, overwrite)


def packed_tensors(params: Any, table: Table) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """File tensors of the coded matrices, and the names of these without a prefix: int4, table4."""
    leaves, _ = pytree.tree_flatten_with_path(params, is_leaf=lambda x: isinstance(x, CODED))
    found: dict[str, Tensor] = {}
    quantised, tabled = [], []
    for path, leaf in leaves:
        if not isinstance(leaf, CODED):
            continue
        names = table.sources[f"{pytree.keystr(path).lstrip('.')}.weight"].names
        whole = int4.unpack(leaf) if isinstance(leaf, Int4) else table4.unpack(leaf)
        parts = ("qweight", "scale", "mn") if isinstance(leaf, Int4) else PARTS
        for name, codes, *others in zip(names, *(t.split(leaf.splits) for t in whole), strict=True):
            spelled = table.spell(name)
            pairs = codes.unflatten(1, (-1, 2))
            halves = pairs[..., 0] | pairs[..., 1] << 4
            own = zip(parts, (halves, *others), strict=True)
            found |= {f"{spelled}.{part}": t for part, t in own}
            (quantised if isinstance(leaf, Int4) else tabled).append(name)
    return found, quantised, tabled


def _dense(params: Any, table: Table) -> set[str]:
    return set(tensors(params)) & set(table.sources)
