"""Files into params: each tensor allocated once and filled from the files, a block of rows at a
time; matrices of any published format, the plainest way to hold them that loses nothing.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from tr.checkpoint.files import Tensors, open_folder
from tr.checkpoint.imports.declared import PLAIN, read_scheme
from tr.checkpoint.imports.gguf import is_gguf, open_gguf
from tr.checkpoint.imports.hold import fill, pack, packs, recoded, spans
from tr.checkpoint.imports.report import Held, sentences
from tr.checkpoint.imports.stored import Stored
from tr.checkpoint.imports.table4 import pack as pack_table
from tr.checkpoint.imports.table4 import tabled
from tr.checkpoint.inventory import Plan, match
from tr.checkpoint.metadata import dtype_name, read_eos, read_json, stored_dtype
from tr.checkpoint.names import Table, target_canonical, target_table
from tr.model import mtp, text
from tr.model.config import ModelConfig
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.matrix import Matrix, stays
from tr.nn.formats.table4 import Table4
from tr.progress import stage
from tr.tree import map_tensors, tensors, tree

T = TypeVar("T")
Arrive = Callable[[str, Dense], Matrix]


@dataclass(frozen=True)
class Target:
    """A checkpoint's model. `skipped`: file tensors left unread; `warnings`: one sentence each;
    `report`: what became of each tensor that was read.
    """

    config: ModelConfig
    params: text.Params
    mtp: mtp.Params | None
    eos: tuple[int, ...]
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    report: tuple[Held, ...] = ()


@tree
class Weights:
    """What one target checkpoint holds; the key paths of `names.target_table`."""

    text: text.Params
    mtp: mtp.Params | None


def load_target(
    folder: Path | str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    with_mtp: bool = True,
    arrive: Arrive | None = None,
    requantise: Arrive | None = None,
) -> Target:
    """Load a Hugging Face folder, plain or quantised; `dtype` None means the one its config.json
    declares.

    The multi-token-prediction head is read where there is one and `with_mtp` asks for it.
    A matrix that is quantised in the files is held by its own codes where int4 tiles or a table's
    give the same numbers, else as numbers; with `requantise` (name, matrix) it becomes int4 all the
    same: by its own codes with rounded scales, or else by what `requantise` makes of the numbers.
    `arrive` (name, matrix) may put any other matrix into another format as soon as it is on the
    device, before the next one is read.
    Raises FileNotFoundError and ValueError naming the file or tensor and what to do.
    """
    opened = open_target(folder, dtype, with_mtp)
    loading = Loading(opened.files, opened.plan, device, arrive, requantise)
    weights, report = _load(loading, opened.with_tables(device))
    return Target(
        opened.config,
        weights.text,
        weights.mtp,
        opened.eos,
        opened.plan.skipped,
        opened.warnings + sentences(report),
        report,
    )


@dataclass(frozen=True)
class Found:
    """A checkpoint that has been matched with its model, of which no tensor is read yet."""

    config: ModelConfig
    files: Tensors
    shapes: Weights  # on the meta device
    plan: Plan
    eos: tuple[int, ...]
    warnings: tuple[str, ...]

    @property
    def foreign(self) -> bool:
        """Whether anything is stored in other than the model's own way."""
        return any(one.foreign for stored in self.plan.reads.values() for one in stored)

    def with_tables(self, device: torch.device | str) -> Weights:
        """`shapes` with the rotary tables, which no file has."""
        own = self.shapes.text
        rope = text.tables(self.config, own.norm.dtype, str(device))
        return dataclasses.replace(self.shapes, text=dataclasses.replace(own, rope=rope))


def open_target(
    folder: Path | str, dtype: torch.dtype | None = None, with_mtp: bool = True
) -> Found:
    """The first half of `load_target`: headers and small files, every complaint about names."""
    folder = Path(folder)
    files = None if is_gguf(folder) else open_folder(folder)
    raw = read_json(folder / "config.json")
    config, scheme = ModelConfig.from_hf(raw), read_scheme(folder, raw)
    files = files or open_gguf(folder, config)
    dtype = dtype or stored_dtype(raw)
    eos, warnings = read_eos(folder)
    warnings += scheme.notes
    outside = [i for i in eos if i >= config.vocab]
    if outside:
        raise ValueError(
            f"{folder}: eos ids {outside} exceed the vocabulary of {config.vocab} rows"
        )
    with_mtp = with_mtp and config.mtp_layers > 0
    if with_mtp and not has_mtp(files):
        with_mtp = False
        warnings += (
            f"{folder} has no mtp.* tensors, although its config.json declares a multi-token-"
            "prediction head: draft=mtp is unavailable",
        )
    if files.unlisted:
        warnings += (
            f"{len(files.unlisted)} files of {folder} belong to no index and were left unread,"
            f" {files.unlisted[0]} among them",
        )
    shapes = skeleton(
        lambda generator: Weights(
            text=text.init(config, generator, dtype),
            mtp=mtp.init(config, generator, dtype) if with_mtp else None,
        )
    )
    plan = match(shapes, target_table(config, with_mtp), files, scheme)
    if plan.rounded:
        warnings += (
            f"{len(plan.rounded)} tensors are stored wider than {dtype_name(dtype)} and were "
            f"rounded to it, {plan.rounded[0]} among them",
        )
    return Found(config, files, shapes, plan, eos, warnings + plan.warnings)


def has_mtp(files: Tensors) -> bool:
    return any(target_canonical(name).startswith("mtp.") for name in files.entries)


def read_shape(folder: Path | str) -> ModelConfig:
    """The model's shape from a folder's config.json; raises as `load_target`."""
    return ModelConfig.from_hf(read_json(Path(folder) / "config.json"))


def load_into(
    folder: Path | str,
    params: T,
    table: Table,
    device: torch.device | str = "cpu",
    arrive: Arrive | None = None,
    requantise: Arrive | None = None,
) -> tuple[T, tuple[Held, ...]]:
    """`params` with every tensor of `table` read from `folder`, in that tensor's shape and dtype,
    and what became of each.

    Tensors of the table are not read from `params`, so they may be on the meta device (`skeleton`);
    the others move to `device`. Raises as `load_target`.
    """
    return _load(open_into(folder, params, table, device, arrive, requantise), params)


def skeleton(build: Callable[[torch.Generator], T]) -> T:
    """What `build` makes with a random generator, its tensors on the meta device: shapes only."""
    with FakeTensorMode():
        params = build(torch.Generator())
    return map_tensors(lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), params)


@dataclass(frozen=True)
class Piece:
    """One tensor or matrix of the params by its key path, and what became of its file tensors."""

    key: str
    value: Any
    report: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Loading:
    """What is read, where to, and what becomes of matrices on the way; see `load_target`."""

    files: Tensors
    plan: Plan
    device: torch.device | str
    arrive: Arrive | None = None
    requantise: Arrive | None = None

    def matrix(self, key: str, like: Dense) -> Piece:
        stored = self.plan.reads[f"{key}.weight"]
        opened = [one.open() for one in stored]
        foreign = any(one.foreign for one in stored)
        if foreign and not stays(like.weight.shape, key):
            if self.requantise is None and tabled(stored):
                return Piece(key, *pack_table(stored, self.device))
            if packs(stored, opened, rounding=self.requantise is not None):
                return Piece(key, *pack(stored, opened, self.device))
        weight = torch.empty(like.weight.shape, dtype=like.weight.dtype, device=self.device)
        report = fill(stored, opened, weight)
        made: Matrix = dataclasses.replace(like, weight=weight)
        if foreign and self.requantise:
            made = self.requantise(key, made)
        if self.arrive and isinstance(made, Dense):
            made = self.arrive(key, made)
        if isinstance(made, Int4 | Table4):
            report = recoded(report, weight, made)
        return Piece(key, made, report)

    def tensor(self, key: str, like: Tensor) -> Piece:
        if key not in self.plan.reads:
            assert not like.is_meta, f"{key} is on the meta device and in no file"
            return Piece(key, like.to(self.device))
        stored = self.plan.reads[key]
        out = torch.empty(like.shape, dtype=like.dtype, device=self.device)
        return Piece(key, out, fill(stored, [one.open() for one in stored], out))

    def pieces(self, params: Any) -> Iterator[Piece]:
        """Every leaf of `params` in turn; what is not kept is gone before the next one is read."""
        leaves, _ = pytree.tree_flatten_with_path(params, is_leaf=lambda x: isinstance(x, Dense))
        for path, leaf in leaves:
            key = pytree.keystr(path).lstrip(".")
            if isinstance(leaf, Dense):
                yield self.matrix(key, leaf)
            elif isinstance(leaf, Tensor):
                yield self.tensor(key, leaf)
            else:
                yield Piece(key, leaf)


def open_into(
    folder: Path | str,
    params: Any,
    table: Table,
    device: torch.device | str = "cpu",
    arrive: Arrive | None = None,
    requantise: Arrive | None = None,
) -> Loading:
    """The first half of `load_into`: every complaint about names, no tensor read."""
    folder = Path(folder)
    config = folder / "config.json"
    scheme = read_scheme(folder, read_json(config)) if config.is_file() else PLAIN
    files = open_folder(folder)
    return Loading(files, match(params, table, files, scheme), device, arrive, requantise)


def _load(loading: Loading, params: T) -> tuple[T, tuple[Held, ...]]:
    values, report = [], []
    total = sum(one.nbytes for stored in loading.plan.reads.values() for one in stored)
    with stage("loading", total, "bytes") as told:
        for piece in loading.pieces(params):
            values.append(piece.value)
            report += piece.report
            told.advance(sum(held.stored_bytes for held in piece.report))
    spec = pytree.tree_structure(params, is_leaf=lambda x: isinstance(x, Dense))
    loaded = pytree.tree_unflatten(values, spec)
    held = tensors(loaded)
    for key, copy in loading.plan.copies.items():
        _check_copy(copy, held[key], loading.plan.reads[key][0])
    return loaded, tuple(report)


def _check_copy(copy: Stored, tensor: Tensor, original: Stored) -> None:
    """Raise unless a copy in the files equals the loaded `tensor`, compared by row blocks."""
    source = copy.open()
    for start, stop in spans(copy.shape):
        if not torch.equal(tensor[start:stop], source.weight(start, stop).to(tensor)):
            ours, theirs = original.spelled, copy.spelled
            raise ValueError(
                f"{theirs} differs from {ours} although config.json ties them "
                "(tie_word_embeddings); set it to false, or drop the copy"
            )
