"""A folder of safetensors files as one table of tensors, memory-mapped and checked before use."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from shutil import rmtree
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tr.checkpoint.metadata import listing, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Entry:
    """One stored tensor, known from its file's header."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # as the format spells it: BF16, F32, ...


@dataclass(frozen=True)
class Folder:
    entries: Mapping[str, Entry]
    _handles: Mapping[Path, Any]

    def read(self, name: str) -> Tensor:
        """The tensor `name`, a view of the mapped file: pages are read when copied from."""
        return self._handles[self.entries[name].file].get_tensor(name)


def open_folder(folder: Path) -> Folder:
    """Map `model.safetensors`, or the shards that `model.safetensors.index.json` lists.

    Only headers are read. Raises FileNotFoundError for a missing file, ValueError for a damaged one
    and for an index that disagrees with its shards.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint: {folder} is not a folder; give one with config.json")
    single, index = folder / SINGLE, folder / INDEX
    weight_map = _weight_map(index) if index.is_file() else None
    if weight_map is None:
        if not single.is_file():
            raise FileNotFoundError(
                f"checkpoint: {folder} has neither {SINGLE} nor {INDEX}; it holds {listing(folder)}"
            )
        files = [single]
    else:
        files = [folder / name for name in sorted(set(weight_map.values()))]
        if single.is_file() and single not in files:
            raise ValueError(
                f"checkpoint: {folder} has both {SINGLE} and an {INDEX} that leaves it out; "
                "remove the one that is stale"
            )
    entries: dict[str, Entry] = {}
    handles = {}
    for file in files:
        handles[file] = _open(file)
        for name, entry in _header(file, handles[file]):
            if name in entries:
                raise ValueError(
                    f"checkpoint: tensor {name} is in two files, {entries[name].file.name} and "
                    f"{file.name}; remove one copy"
                )
            entries[name] = entry
    if weight_map is not None:
        _compare(weight_map, entries, index)
    return Folder(entries, handles)


@contextmanager
def new_folder(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place at the end; none is left on an error.

    An existing `folder` is replaced as a whole, if `overwrite` and it is a checkpoint.
    """
    occupied = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if occupied and not overwrite:
        raise FileExistsError(f"checkpoint: {folder} exists; choose a new folder or overwrite it")
    if occupied and not (folder / "config.json").is_file():
        raise FileExistsError(f"checkpoint: {folder} is not a checkpoint; refusing to replace it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        if occupied:
            folder.rename(old)
        try:
            partial.rename(folder)
        except OSError:
            if occupied:
                old.rename(folder)
            raise
    finally:
        rmtree(partial, ignore_errors=True)
    if occupied:
        rmtree(old)


def _weight_map(index: Path) -> dict[str, str]:
    """tensor name -> shard name."""
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{index}: weight_map is missing or empty; fetch the file again")
    for name, file in found.items():
        if not isinstance(file, str) or PurePath(file).name != file or file in ("", ".", ".."):
            raise ValueError(
                f"{index}: tensor {name} points outside the folder ({file!r}); "
                "an index may name files beside it only"
            )
    return found


def _open(file: Path) -> Any:
    if not file.is_file():
        raise FileNotFoundError(
            f"checkpoint: shard {file.name} is missing from {file.parent}; download it again"
        )
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        with file.open("rb") as stream:
            pointer = stream.read(40).startswith(b"version https://git-lfs")
        remedy = "run `git lfs pull` in its folder" if pointer else "download it again"
        kind = "a Git LFS pointer" if pointer else f"truncated or damaged ({error})"
        raise ValueError(f"checkpoint: {file} is {kind}; {remedy}") from error


def _header(file: Path, handle: Any) -> Iterator[tuple[str, Entry]]:
    for name in handle.keys():  # noqa: SIM118 (not a dict)
        part = handle.get_slice(name)
        yield name, Entry(file, tuple(part.get_shape()), part.get_dtype())


def _compare(weight_map: Mapping[str, str], entries: Mapping[str, Entry], index: Path) -> None:
    for name, file in weight_map.items():
        if name not in entries or entries[name].file.name != file:
            where = f"; it is in {entries[name].file.name}" if name in entries else ""
            raise ValueError(
                f"{index}: tensor {name} is not in {file} as listed{where}; "
                "fetch the index and that shard again"
            )
    for name, entry in entries.items():
        if name not in weight_map:
            raise ValueError(
                f"{index}: tensor {name} of {entry.file.name} is not listed; fetch the index again"
            )
