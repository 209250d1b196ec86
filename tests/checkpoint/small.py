"""A small hybrid model with random weights, and equality of pytrees to the bit."""

import dataclasses
from typing import Any

import torch

from tests.model.small import CONFIG, random_mtp, random_params
from tr.checkpoint.load import Target
from tr.model.config import FULL, LINEAR
from tr.tree import tensors

SHAPE = {"vocab": 80, "d_model": 64, "d_ff": 96, "d_k": 16, "d_v": 16, "max_positions": 128}


def random_target(tied: bool, dtype: torch.dtype = torch.bfloat16) -> Target:
    layers = (LINEAR, LINEAR, LINEAR, FULL)
    config = dataclasses.replace(CONFIG, tie_embeddings=tied, layer_types=layers, **SHAPE)
    return Target(config, random_params(dtype, config), random_mtp(dtype, config), (3, 7))


def same(a: Any, b: Any) -> bool:
    """Whether two pytrees hold the same tensors, to the bit, under the same names."""
    x, y = tensors(a), tensors(b)
    return x.keys() == y.keys() and all(
        x[k].dtype == y[k].dtype and torch.equal(x[k], y[k]) for k in x
    )
