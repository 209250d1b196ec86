"""Quantised weights as plain numbers: the one forward that every candidate is judged by."""

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.table4 import Table4

T = TypeVar("T")
CODED = (Int4, Table4)


def numbers(params: T, dtype: torch.dtype | None = None) -> T:
    """Coded matrices restored to bfloat16, as kernels read them; then all numbers in `dtype`."""

    def change(x: Any) -> Any:
        if isinstance(x, CODED):
            x = Dense(weight=x.weight(torch.bfloat16), splits=x.splits)
        if isinstance(x, Dense):
            return x if dtype is None else Dense(weight=x.weight.to(dtype), splits=x.splits)
        wide = dtype is not None and isinstance(x, Tensor) and x.is_floating_point()
        return x.to(dtype) if wide else x

    return pytree.tree_map(change, params, is_leaf=lambda x: isinstance(x, (Dense, *CODED)))


def bits_per_weight(params: Any) -> float:
    """Of the coded matrices, scales and all; 16 where there is none."""
    leaves = pytree.tree_leaves(params, is_leaf=lambda x: isinstance(x, CODED))
    coded = [x for x in leaves if isinstance(x, CODED)]
    weights = sum(x.shape[0] * x.shape[1] for x in coded)
    return 8 * sum(x.nbytes for x in coded) / weights if weights else 16.0
