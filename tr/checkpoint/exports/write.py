"""A checkpoint as others read it, written tensor by tensor: no more than a shard is ever held.

`hf`: all numbers in the model's dtype, whatever holds them. `compressed_tensors`: int4 matrices as
pack-quantized where their codes fit it, the rest as numbers. Names and files are the publisher's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.int4_matmul.layout import ROWS
from tr.checkpoint.exports import pack_quantized
from tr.checkpoint.imports.declared import names as matches
from tr.checkpoint.imports.hold import packs, rows_at_once
from tr.checkpoint.imports.report import Held
from tr.checkpoint.imports.table4 import tabled
from tr.checkpoint.inventory import Slot, file_shape
from tr.checkpoint.load import Loading
from tr.checkpoint.names import Table
from tr.checkpoint.shards import Shards, to_json
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.matrix import Matrix, stays

KINDS = ("hf", "compressed_tensors")


@dataclass(frozen=True)
class Export:
    """What is written. `plain`: patterns of matrices to write as numbers all the same. `texts`:
    further files. `copied`: file tensors that are carried over as they are.
    """

    kind: str
    config: Mapping[str, Any]
    table: Table
    dtype: torch.dtype
    plain: Sequence[str] = ()
    texts: Mapping[str, str | bytes] | None = None
    copied: Sequence[str] = ()
    shard_bytes: int = 2 * 10**9


@dataclass(frozen=True)
class Written:
    """`coded` and `numbers`: modules by the files' names. `report`: how they were read."""

    coded: tuple[str, ...]
    numbers: tuple[str, ...]
    tensors: int
    nbytes: int
    report: tuple[Held, ...]


def write(folder: Path, loading: Loading, params: Any, export: Export) -> Written:
    """Fill an empty folder with `export` of what `loading` reads; `params`: its shapes.

    Raises ValueError, by name, for codes that the format has no room for; before anything is
    written where that shows in the scales.
    """
    plan = _decide(loading, params, export)
    config = dict(export.config)
    if plan.coded:
        own = pack_quantized.declaration(plan.symmetric, plan.coded, plan.ignored(export))
        config["quantization_config"] = own
    for name, content in {**(export.texts or {}), "config.json": to_json(config)}.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    shards, report, count = Shards(folder, export.shard_bytes), [], 0
    for piece in loading.pieces(params):
        report += piece.report
        for name, tensor in _tensors(piece.key, piece.value, plan, export):
            shards.add(name, tensor)
            count += 1
        del piece  # before the next one is read
    for name in export.copied:
        shards.add(name, loading.files.read(name))
    shards.close()
    return Written(
        plan.coded, plan.numbers, count + len(export.copied), shards.nbytes, tuple(report)
    )


@dataclass(frozen=True)
class _Plan:
    coded: tuple[str, ...]
    numbers: tuple[str, ...]
    symmetric: bool

    def ignored(self, export: Export) -> list[str]:
        """Matrices left as numbers, by name; a tied head, and what is copied, by pattern."""
        tied = ["lm_head"] if export.table.copies else []
        vision = ["re:.*visual.*"] if export.copied else []
        return [*self.numbers, *tied, *vision]


def _decide(loading: Loading, params: Any, export: Export) -> _Plan:
    """Which modules become codes; scales are read, codes are not."""
    leaves, _ = pytree.tree_flatten_with_path(params, is_leaf=lambda x: isinstance(x, Dense))
    coded, numbers, symmetric = [], [], True
    for path, leaf in leaves:
        key = pytree.keystr(path).lstrip(".")
        source = export.table.sources.get(f"{key}.weight")
        if source is None or not isinstance(leaf, Dense):
            continue
        stored = loading.plan.reads[f"{key}.weight"]
        opened = [one.open() for one in stored]
        modules = [export.table.spell(short).removesuffix(".weight") for short in source.names]
        if tabled(stored) and any(_wanted(module, export) for module in modules):
            raise ValueError(
                f"{modules[0]}: it is held as table4, and compressed-tensors has no such format;"
                f" write numbers: params.to=hf, or these alone: params.plain=[{','.join(modules)}]"
            )
        held = any(one.foreign for one in stored) and not stays(leaf.weight.shape, key)
        held = held and packs(stored, opened, rounding=False)
        for module, one, codes in zip(modules, stored, opened, strict=True):
            if not held or not _wanted(module, export):
                numbers.append(module)
                continue
            coded.append(module)
            assert codes.grid is not None
            scale, minimum, _ = codes.grid.int4(one.shape[1])
            zero = pack_quantized.zero_points(module, scale, minimum)
            symmetric = symmetric and bool((zero == pack_quantized.MIDDLE).all())
    if export.kind == "compressed_tensors" and not coded:
        raise ValueError(
            "export: no matrix is held as int4 codes, so there is nothing to pack; make codes with"
            " +exp=quantize, or write numbers: params.to=hf"
        )
    return _Plan(tuple(coded), tuple(numbers), symmetric)


def _wanted(module: str, export: Export) -> bool:
    """Whether the module is written as codes where it is held as codes."""
    if export.kind == "hf":
        return False
    return not any(matches(pattern, module) for pattern in export.plain)


def _tensors(key: str, value: Any, plan: _Plan, export: Export) -> Iterator[tuple[str, Tensor]]:
    """File tensors of one leaf of the params; none where the table has none."""
    sources, spell = export.table.sources, export.table.spell
    if isinstance(value, Tensor):
        if key in sources:  # rotary tables are in no file
            shape = file_shape(Slot(value, tuple(value.shape[:1])), sources[key], 0)
            yield spell(sources[key].names[0]), value.reshape(shape)
        return
    if value is None:  # a tied head
        return
    at = 0
    for short, rows in zip(sources[f"{key}.weight"].names, value.splits, strict=True):
        module = spell(short).removesuffix(".weight")
        if module not in plan.coded:
            yield spell(short), _numbers(value, at, at + rows, export.dtype)
        else:
            assert isinstance(value, Int4)
            block = rows_at_once(value.shape)
            own = pack_quantized.parts(module, value, at, at + rows, plan.symmetric, block)
            yield from ((f"{module}.{part}", tensor) for part, tensor in own.items())
        at += rows


def _numbers(x: Matrix, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows start..stop; of codes not all at once."""
    if isinstance(x, Dense):
        return x.weight[start:stop]
    out, step = torch.empty(stop - start, x.shape[1], dtype=dtype), rows_at_once(x.shape)
    for row in range(start // ROWS * ROWS, stop, step):
        restored = x.rows(row // ROWS, -(-min(row + step, stop) // ROWS), dtype)
        first, last = max(row, start), min(row + step, stop)
        out[first - start : last - start] = restored[first - row : last - row]
    return out
