"""Files into params: allocate each tensor once, fill it from the mapped files piece by piece."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from tr.checkpoint.files import Folder, open_folder
from tr.checkpoint.inventory import Plan, match
from tr.checkpoint.metadata import (
    dtype_name,
    read_eos,
    read_json,
    refuse_quantized,
    stored_dtype,
)
from tr.checkpoint.names import Table, target_table
from tr.model import mtp, text
from tr.model.config import ModelConfig
from tr.nn.formats.dense import Dense
from tr.nn.formats.matrix import Matrix
from tr.tree import map_tensors, tensors, tree

T = TypeVar("T")
Arrive = Callable[[str, Dense], Matrix]


@dataclass(frozen=True)
class Target:
    """A checkpoint's model. `skipped`: file tensors left unread; `warnings`: one sentence each."""

    config: ModelConfig
    params: text.Params
    mtp: mtp.Params | None
    eos: tuple[int, ...]
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


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
) -> Target:
    """Load a Hugging Face folder; `dtype` None means the one its config.json declares.

    The multi-token-prediction head is read where the config has one and `with_mtp` asks for it.
    `arrive` (name, matrix) may put a matrix into another format as soon as it is on the device,
    before the next one is read.
    Raises FileNotFoundError and ValueError naming the file or tensor and what to do.
    """
    folder = Path(folder)
    files = open_folder(folder)
    config = read_shape(folder)
    dtype = dtype or stored_dtype(read_json(folder / "config.json"))
    eos, warnings = read_eos(folder)
    outside = [i for i in eos if i >= config.vocab]
    if outside:
        raise ValueError(
            f"{folder}: eos ids {outside} exceed the vocabulary of {config.vocab} rows"
        )
    with_mtp = with_mtp and config.mtp_layers > 0
    shapes = skeleton(
        lambda generator: Weights(
            text=text.init(config, generator, dtype),
            mtp=mtp.init(config, generator, dtype) if with_mtp else None,
        )
    )
    rope = text.tables(config, dtype, str(device))
    shapes = dataclasses.replace(shapes, text=dataclasses.replace(shapes.text, rope=rope))
    weights, plan = _load(files, shapes, target_table(config, with_mtp), device, arrive)
    if plan.rounded:
        warnings += (
            f"{len(plan.rounded)} tensors are stored wider than {dtype_name(dtype)} and were "
            f"rounded to it, {plan.rounded[0]} among them",
        )
    return Target(config, weights.text, weights.mtp, eos, plan.skipped, warnings)


def read_shape(folder: Path | str) -> ModelConfig:
    """The model's shape from a folder's config.json; raises as `load_target`."""
    raw = read_json(Path(folder) / "config.json")
    refuse_quantized(raw)
    return ModelConfig.from_hf(raw)


def load_into(
    folder: Path | str,
    params: T,
    table: Table,
    device: torch.device | str = "cpu",
    arrive: Arrive | None = None,
) -> T:
    """`params` with every tensor of `table` read from `folder`, in that tensor's shape and dtype.

    Tensors of the table are not read from `params`, so they may be on the meta device (`skeleton`);
    the others move to `device`. Raises as `load_target`.
    """
    return _load(open_folder(Path(folder)), params, table, device, arrive)[0]


def skeleton(build: Callable[[torch.Generator], T]) -> T:
    """What `build` makes with a random generator, its tensors on the meta device: shapes only."""
    with FakeTensorMode():
        params = build(torch.Generator())
    return map_tensors(lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), params)


def _load(
    files: Folder,
    params: T,
    table: Table,
    device: torch.device | str,
    arrive: Arrive | None = None,
) -> tuple[T, Plan]:
    plan = match(params, table, files.entries)

    def place(key: str, tensor: Tensor) -> Tensor:
        if key in plan.reads:
            return _fill(files, plan.reads[key], tensor, device)
        assert not tensor.is_meta, f"{key} is on the meta device and in no file"
        return tensor.to(device)

    leaves, spec = pytree.tree_flatten_with_path(params, is_leaf=lambda x: isinstance(x, Dense))
    new = []
    for path, leaf in leaves:
        key = pytree.keystr(path).lstrip(".")
        if isinstance(leaf, Dense):
            leaf = dataclasses.replace(leaf, weight=place(f"{key}.weight", leaf.weight))
            leaf = arrive(key, leaf) if arrive else leaf
        elif isinstance(leaf, Tensor):
            leaf = place(key, leaf)
        new.append(leaf)
    loaded = pytree.tree_unflatten(new, spec)
    held = tensors(loaded)
    for name, key in plan.copies.items():
        _check_copy(files.read(name), held[key], name, plan.reads[key][0])
    return loaded, plan


def _fill(
    files: Folder, names: tuple[str, ...], like: Tensor, device: torch.device | str
) -> Tensor:
    """One tensor of the shape and dtype of `like`, stacked from file tensors."""
    out = torch.empty(like.shape, dtype=like.dtype, device=device)
    start = 0
    for name in names:
        part = files.read(name)
        rows = out[start : start + part.shape[0]]
        rows.copy_(part.view(rows.shape))
        start += part.shape[0]
    assert start == like.shape[0], names
    return out


def _check_copy(copy: Tensor, tensor: Tensor, name: str, original: str) -> None:
    """Raise unless the file tensor `copy` equals the loaded `tensor`, compared by row blocks."""
    for ours, theirs in zip(tensor.split(4096), copy.split(4096), strict=True):
        if not torch.equal(ours, theirs.to(ours)):
            raise ValueError(
                f"{name} differs from {original} although config.json ties them "
                "(tie_word_embeddings); set it to false, or drop the copy"
            )
