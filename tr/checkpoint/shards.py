"""Tensors into safetensors files as they come: no more than one file's worth is ever held."""

import json
from collections.abc import Mapping
from pathlib import Path
from shutil import copymode
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tr.checkpoint.files import INDEX, SINGLE

MAX_BYTES = 5 * 10**9


class Shards:
    """The weights of one checkpoint folder, in files of at most `limit` bytes; one larger tensor
    has a file of its own. They have their names, and an index where they are several, once `close`
    is called.
    """

    def __init__(self, folder: Path, limit: int = MAX_BYTES) -> None:
        self.folder, self.limit = folder, limit
        self.nbytes = 0
        self._held: dict[str, Tensor] = {}
        self._where: list[list[str]] = []  # names, by file

    def add(self, name: str, tensor: Tensor) -> None:
        if self._held and tensor.nbytes > self.limit - sum(t.nbytes for t in self._held.values()):
            self._write()
        self._held[name] = tensor
        self.nbytes += tensor.nbytes

    def close(self) -> None:
        if self._held or not self._where:
            self._write()
        count, weight_map = len(self._where), {}
        for i, names in enumerate(self._where):
            file = SINGLE if count == 1 else f"model-{i + 1:05d}-of-{count:05d}.safetensors"
            (self.folder / _unnamed(i)).rename(self.folder / file)
            weight_map |= dict.fromkeys(names, file)
        if count > 1:
            index = {"metadata": {"total_size": self.nbytes}, "weight_map": weight_map}
            (self.folder / INDEX).write_text(to_json(index), encoding="utf-8")

    def _write(self) -> None:
        path = self.folder / _unnamed(len(self._where))
        parts = {name: t.detach().cpu().contiguous() for name, t in self._held.items()}
        save_file(parts, path, metadata={"format": "pt"})
        copymode(self.folder / "config.json", path)  # the writer makes it private
        self._where.append(list(self._held))
        self._held = {}


def _unnamed(number: int) -> str:
    return f"{number}.partial"


def to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
