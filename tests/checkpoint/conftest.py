"""The small model as a checkpoint folder, and its file tensors to rearrange; a wider one, whose
matrices every published format takes.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments import published as p
from tests.checkpoint.small import random_target
from tests.model.small import CONFIG, random_mtp, random_params
from tr.checkpoint.load import Target
from tr.checkpoint.save import save_target
from tr.model.config import FULL, LINEAR, ModelConfig

Write = Callable[[Mapping[str, Tensor], Mapping[str, Any]], Path]
Lay = Callable[[p.Published], Path]
SHAPE = {
    "vocab": 192,
    "d_model": 256,
    "d_ff": 384,
    "heads": 4,
    "d_head": 64,
    "k_heads": 2,
    "v_heads": 8,
    "d_k": 32,
    "d_v": 32,
    "layer_types": (LINEAR, FULL),
}


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


@pytest.fixture(scope="session")
def published_config() -> ModelConfig:
    return dataclasses.replace(CONFIG, **SHAPE)


@pytest.fixture(scope="session")
def whole(published_config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published") / "whole"
    params = random_params(torch.bfloat16, published_config)
    head = random_mtp(torch.bfloat16, published_config)
    save_target(path, published_config, params, head, (3,))
    return path


@pytest.fixture(scope="session")
def matrices(whole: Path) -> dict[str, Tensor]:
    return load_file(whole / "model.safetensors")


@pytest.fixture
def lay(whole: Path, tmp_path: Path) -> Lay:
    """A folder of what was published."""

    def lay(published: p.Published) -> Path:
        path = tmp_path / "checkpoint"
        p.lay(published, path, json.loads((whole / "config.json").read_text()))
        return path

    return lay
