"""How many kernels a step of the 27B launches, counted on the meta device at its own shapes."""

from collections import Counter
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter

from triton.runtime.interpreter import InterpretedFunction  # noqa: E402

from kernels.int4_matmul import layout  # noqa: E402
from kernels.registry import select  # noqa: E402
from tests.kernels.compiled_cases import SHAPE  # noqa: E402
from tr.checkpoint.load import skeleton  # noqa: E402
from tr.decode.step import Model, init_state, step  # noqa: E402
from tr.drafts.base import Feed, Stateless  # noqa: E402
from tr.model import text  # noqa: E402
from tr.model.sampling import sampling  # noqa: E402
from tr.nn.formats.dense import Dense  # noqa: E402
from tr.nn.formats.int4 import Int4  # noqa: E402
from tr.tree import map_tensors, unchecked  # noqa: E402

RAW = {
    "_embed_norm": 1,
    "_int4_matmul_kernel": 4 * 64 + 1,  # of each layer, and the head
    "_gated_delta_step": 48,
    "_qk_rope_store": 16,
    "_attend": 16,
    "_best": 1,
    "_accept": 1,
}


class Launches(TorchDispatchMode):
    """Counts what launches a kernel: all of torch's operators but allocations and views."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and "empty" not in func.name():
            self.seen[func.name()] += 1
        return func(*args, **(kwargs or {}))


def int4(matrix):
    """A matrix of the meta device in int4, but for the small gates."""
    if not isinstance(matrix, Dense) or matrix.weight.shape[0] == 2 * SHAPE.v_heads:
        return matrix
    n, k = matrix.weight.shape
    shape = (n // layout.ROWS, k // layout.GROUP, layout.LINES, layout.WORDS)
    tiles = torch.empty(shape, dtype=torch.int16, device="meta")
    return Int4(tiles=tiles, splits=matrix.splits)


@dataclass(frozen=True)
class Ready(Stateless):
    """Drafts that are there already."""

    rows: int
    taps: tuple[int, ...] = ()
    name: str = "ready"

    def propose(self, state: None, feed: Feed, sampling) -> tuple[Tensor, None]:
        return feed.history[: self.rows - 1], None


def launched(rows, taps=()):
    """What one step launches, by name: Triton's kernels and torch's operators."""
    dense = skeleton(lambda generator: text.init(SHAPE, generator, torch.bfloat16))
    params = pytree.tree_map(int4, dense, is_leaf=lambda x: isinstance(x, Dense))
    model, draft = Model.build(params, select("triton"), SHAPE.vocab), Ready(rows, taps)
    with torch.device("meta"):
        state = init_state(model, draft, 4096)
        greedy = map_tensors(lambda x: x.to("meta"), sampling())
    kernels, launches = Counter(), Launches()

    def count(fn, grid):
        return lambda *args, **kwargs: kernels.update([fn.__name__])

    with unchecked(), patch.object(InterpretedFunction, "__getitem__", count):
        step(model, draft, state, greedy, rows)  # the first one makes counters
        kernels.clear()
        with launches:
            step(model, draft, state, greedy, rows)
    return kernels, launches.seen


def test_a_raw_step_launches_340_kernels():
    kernels, others = launched(1)
    assert others == {} and kernels == RAW and kernels.total() == 340, (kernels, others)


@pytest.mark.parametrize("rows", [8, 16])
def test_a_verifying_step_launches_few_more(rows):
    """Several hiddens and taps are moved by a launch of their own; one more puts taps in a row."""
    kernels, others = launched(rows)
    assert others == {} and kernels == {**RAW, "_hold": 1}, (kernels, others)
    kernels, others = launched(rows, (1, 16, 31, 46, 61))
    assert others == {"aten::cat": 1} and kernels == {**RAW, "_hold": 1}, (kernels, others)
