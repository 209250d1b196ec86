"""The small JSON files beside the weights: shape, stored dtype, end-of-sequence ids."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises FileNotFoundError or ValueError naming the file."""
    if not path.is_file():
        found = listing(path.parent)
        raise FileNotFoundError(f"{path} is missing; the folder holds {found}; copy the file there")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # malformed JSON, or bytes that are not UTF-8
        raise ValueError(f"{path} is not valid JSON ({error}); fetch the file again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def listing(folder: Path, limit: int = 8) -> str:
    """A few names of what a folder holds, for error messages."""
    if not folder.is_dir():
        return "nothing (no such folder)"
    names = sorted(p.name for p in folder.iterdir())
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) + more) or "nothing"


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's part of a config.json, nested or flat."""
    return config.get("text_config") or config


def stored_dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The dtype that a config.json declares: `dtype`, formerly `torch_dtype`, nested or on top."""
    for part in (text_config(config), config):
        name = part.get("dtype") or part.get("torch_dtype")
        if name is not None:
            if name not in _DTYPES:
                raise ValueError(
                    f"config.json: dtype {name!r} is not supported; known: {', '.join(_DTYPES)}"
                )
            return _DTYPES[name]
    raise ValueError("config.json declares no dtype; pass one to load")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read_eos(folder: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """End-of-sequence ids of generation_config.json, and warnings.

    config.json stands in, with a warning, only where that file is missing: it often names a single
    id that chat models never emit.
    """
    path = folder / "generation_config.json"
    if path.is_file():
        return _ids(read_json(path).get("eos_token_id"), path), ()
    path = folder / "config.json"
    config = read_json(path)
    value = text_config(config).get("eos_token_id", config.get("eos_token_id"))
    eos = _ids(value, path)
    return eos, (
        f"{folder} has no generation_config.json: end-of-sequence ids {list(eos)} come from "
        "config.json, which may lack the end-of-turn id",
    )


def _ids(value: Any, path: Path) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError(f"{path}: eos_token_id must be an id or a list of ids, got {value!r}")
    return tuple(dict.fromkeys(ids))
