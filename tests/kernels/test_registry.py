"""Choosing variants by name, and what a variant refuses rather than computing it differently."""

import pytest
import torch

from kernels.define import VARIANTS
from kernels.registry import select


def test_auto_is_tile_where_there_is_one():
    ops = select()
    assert ops.matmul is VARIANTS["matmul"]["tile"]
    assert ops.rms_norm is VARIANTS["rms_norm"]["reference"]
    mixed = select("tile", {"matmul": "reference"})
    assert mixed.matmul is VARIANTS["matmul"]["reference"] and mixed.silu_mul is ops.silu_mul


@pytest.mark.parametrize(
    "choice, overrides, complaint",
    [
        ("fast", {}, "unknown variant 'fast'; known: auto, reference, tile"),
        ("auto", {"matmull": "tile"}, "unknown operator 'matmull'; nearest: matmul"),
        ("auto", {"rms_norm": "tile"}, "no variant 'tile'; it has reference"),
    ],
)
def test_misspelt_choices(choice, overrides, complaint):
    with pytest.raises(ValueError, match=complaint):
        select(choice, overrides)


def test_tile_variants_refuse_shapes_whose_rows_would_differ():
    def tile(operator, *arguments):
        return VARIANTS[operator]["tile"](*arguments)

    with pytest.raises(ValueError, match="kernel.silu_mul=reference"):
        tile("silu_mul", torch.randn(2, 2 * 96))
    with pytest.raises(ValueError, match="at most 16 rows, got 17"):
        tile("matmul", torch.randn(17, 32), torch.randn(8, 32), [8])
    q, gate, pos = torch.randn(1, 2, 32), torch.randn(1, 64), torch.tensor(0)
    for capacity, d in ((100, 32), (512, 24)):
        cache = torch.zeros(1, capacity, d)
        with pytest.raises(ValueError, match="kernel.attention_decode=reference"):
            tile("attention_decode", q[..., :d], gate[:, : 2 * d], cache, cache, pos)
