"""Finished parts of an interrupted run, one file each, written whole or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file

from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.table4 import Table4
from tr.quant.hessian import matrices, replace_matrices
from tr.quant.numbers import CODED
from tr.tree import tensors

T = TypeVar("T")
NOTE = "recipe.json"


class Files:
    """Parts in codes, in `folder`. `recipe`: all that decides them, compared with what the folder
    says of itself; raises ValueError where it holds another run's.
    """

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self.folder = folder
        self.reused: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        note = json.dumps(recipe, indent=2, sort_keys=True)
        path = folder / NOTE
        if not path.exists():
            _write(path, lambda new: new.write_text(note))
        elif path.read_text() != note:
            raise ValueError(
                f"{folder} holds parts of a run with another model, text or recipe; remove it, or"
                " choose another params.output"
            )

    def get(self, name: str, like: T) -> T | None:
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            return None
        self.reused.append(name)
        device = next(iter(matrices(like).values())).device
        found = load_file(path, str(device))

        def held(key: str, like: Dense) -> Int4 | Table4:
            tiles, exponent = found[f"{key}.tiles"], found.get(f"{key}.exponent")
            if exponent is None:
                return Int4(tiles=tiles, splits=like.splits)
            return Table4(tiles=tiles, exponent=exponent, splits=like.splits)

        return replace_matrices(like, held)

    def put(self, name: str, part: Any) -> None:
        named = {f".{k}": t for k, t in tensors(part).items()} if isinstance(part, CODED) else {}
        named = named or tensors(part)
        found = {k: t.cpu() for k, t in named.items() if k.endswith((".tiles", ".exponent"))}
        _write(self.folder / f"{name}.safetensors", lambda new: save_file(found, new))


def _write(path: Path, write: Any) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
