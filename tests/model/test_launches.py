"""How many kernels a raw step of the 27B launches, counted on the meta device at its own shapes."""

from collections import Counter
from unittest.mock import patch

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter

from triton.runtime.interpreter import InterpretedFunction  # noqa: E402

from kernels.int4_matmul import layout  # noqa: E402
from kernels.registry import select  # noqa: E402
from tests.kernels.compiled_cases import SHAPE  # noqa: E402
from tr.checkpoint.load import skeleton  # noqa: E402
from tr.model import text  # noqa: E402
from tr.nn.formats.dense import Dense  # noqa: E402
from tr.nn.formats.int4 import Int4  # noqa: E402

MOST = 420


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


@pytest.mark.parametrize("rows", [1, 8, 16])
def test_a_step_launches_few_kernels(rows):
    dense = skeleton(lambda generator: text.init(SHAPE, generator, torch.bfloat16))
    params = pytree.tree_map(int4, dense, is_leaf=lambda x: isinstance(x, Dense))
    ops = select("triton")
    tokens = torch.zeros(rows, dtype=torch.int64, device="meta")
    scalars = [torch.empty((), device="meta") for _ in range(4)]
    seed = torch.zeros(2, dtype=torch.int64, device="meta")
    with torch.device("meta"):
        state = text.init_state(params, 4096, 16)
    kernels = Counter()

    def count(fn, grid):
        return lambda *args, **kwargs: kernels.update([fn.__name__])

    launches = Launches()
    with patch.object(InterpretedFunction, "__getitem__", count), launches:
        step, state = text.step(params, state, tokens, ops)
        ops.sample(step.logits, state.pos, *scalars, seed, SHAPE.vocab)
        text.commit(state, torch.zeros((), dtype=torch.int64, device="meta"))
    assert kernels["_int4_matmul_kernel"] == 4 * 64 + 1
    assert sum(kernels.values()) + sum(launches.seen.values()) <= MOST, (kernels, launches.seen)
