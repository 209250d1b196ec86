"""A folder of safetensors files as one table of tensors, checked first and read by byte offset."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePath
from shutil import rmtree
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tr.checkpoint.metadata import listing, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class Entry:
    """One stored tensor, known from its file's header."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # as the format spells it: BF16, F32, ...
    start: int  # its first byte in the file
    nbytes: int


class Tensors(Protocol):
    """Named tensors of one checkpoint, whatever its files are."""

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Files of the folder that hold tensors and belong to no index."""
        ...

    @property
    def restores(self) -> tuple[str, ...]:
        """Dtypes that `read` gives as floating numbers."""
        ...

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """A copy of the tensor `name`, or of its rows start..stop."""
        ...


@dataclass(frozen=True)
class Folder:
    entries: Mapping[str, Entry]
    unlisted: tuple[str, ...] = ()
    restores: tuple[str, ...] = ()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        entry = self.entries[name]
        shape, dtype = entry.shape, DTYPES[entry.dtype]
        skip = 0
        if stop is not None:
            skip = start * prod(shape[1:]) * dtype.itemsize
            shape = (stop - start, *shape[1:])
        out = torch.empty(shape, dtype=dtype)
        read_into(entry.file, entry.start + skip, out)
        return out


def read_into(file: Path, start: int, out: Tensor) -> None:
    """Fill a contiguous CPU tensor with the bytes of `file` from `start` on."""
    if not out.numel():
        return
    view = memoryview(out.view(-1).view(torch.uint8).numpy())
    with file.open("rb", buffering=0) as stream:
        stream.seek(start)
        while view:
            count = stream.readinto(view)
            if not count:
                raise ValueError(f"checkpoint: {file} ended while it was read; download it again")
            view = view[count:]


def open_folder(folder: Path) -> Folder:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` lists.

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
    for file in files:
        for name, entry in _header(file):
            if name in entries:
                raise ValueError(
                    f"checkpoint: tensor {name} is in two files, {entries[name].file.name} and "
                    f"{file.name}; remove one copy"
                )
            entries[name] = entry
    if weight_map is not None:
        _compare(weight_map, entries, index)
    listed = {file.name for file in files}
    unlisted = sorted(p.name for p in folder.glob("*.safetensors") if p.name not in listed)
    return Folder(entries, tuple(unlisted))


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


def _header(file: Path) -> Iterator[tuple[str, Entry]]:
    """The entries of one file, whose header the library has found consistent with its length."""
    if not file.is_file():
        raise FileNotFoundError(
            f"checkpoint: shard {file.name} is missing from {file.parent}; download it again"
        )
    try:
        safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        with file.open("rb") as stream:
            pointer = stream.read(40).startswith(b"version https://git-lfs")
        remedy = "run `git lfs pull` in its folder" if pointer else "download it again"
        kind = "a Git LFS pointer" if pointer else f"truncated or damaged ({error})"
        raise ValueError(f"checkpoint: {file} is {kind}; {remedy}") from error
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    for name in sorted(header.keys() - {"__metadata__"}):
        part = header[name]
        first, last = part["data_offsets"]
        yield name, Entry(file, tuple(part["shape"]), part["dtype"], 8 + size + first, last - first)


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
