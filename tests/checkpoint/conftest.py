"""The small model as a checkpoint folder, and its file tensors to rearrange."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoint.small import random_target
from tr.checkpoint.load import Target
from tr.checkpoint.save import save_target

Write = Callable[[Mapping[str, Tensor], Mapping[str, Any]], Path]


@pytest.fixture(scope="session")
def target() -> Target:
    return random_target(tied=False)


@pytest.fixture(scope="session")
def folder(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target` as this project saves it: one file, text-only names."""
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    save_target(path, target.config, target.params, target.mtp, target.eos)
    return path


@pytest.fixture
def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture
def raw_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Lay out file tensors and a config.json as a checkpoint folder, with no check at all."""

    def write(parts: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
        path = tmp_path / "written"
        path.mkdir()
        save_file(dict(parts), path / "model.safetensors", metadata={"format": "pt"})
        (path / "config.json").write_text(json.dumps(config))
        (path / "generation_config.json").write_text('{"eos_token_id": [3, 7]}')
        return path

    return write
