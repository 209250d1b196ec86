"""Choosing variants by name, and what a variant refuses rather than computing it differently."""

import pytest
import torch

from kernels.define import VARIANTS, Support, Target
from kernels.registry import select

HOPPER, TURING = Target("cuda", (9, 0)), Target("cuda", (7, 5))


def test_auto_is_tile_where_there_is_one():
    ops = select()
    assert ops.matmul is VARIANTS["matmul"]["tile"]
    assert ops.rms_norm is VARIANTS["rms_norm"]["reference"]
    mixed = select("tile", {"matmul": "reference"})
    assert mixed.matmul is VARIANTS["matmul"]["reference"] and mixed.silu_mul is ops.silu_mul


@pytest.mark.parametrize(
    "choice, overrides, complaint",
    [
        ("fast", {}, "unknown variant 'fast'; known: auto, .*reference, tile"),
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


@pytest.fixture
def fast():
    """One fast variant of int4_matmul, `triton`, for CUDA alone as outside the interpreter."""
    table = VARIANTS["int4_matmul"]
    kept = dict(table)
    support = Support(devices=("cuda",), capability=(8, 0), multiples={"k": 128})

    def call():
        raise AssertionError("only chosen, never run")

    call.support = support
    table.pop("gluon", None)
    table["triton"] = call
    yield call
    table.clear()
    table.update(kept)


def test_auto_takes_the_best_variant_that_the_device_and_the_sizes_allow(fast):
    table = VARIANTS["int4_matmul"]
    assert select("auto", device=HOPPER).int4_matmul is fast
    assert select("triton", device=HOPPER).int4_matmul is fast
    assert select("auto", device=TURING).int4_matmul is table["tile"]
    assert select("auto").int4_matmul is table["tile"]
    assert select("tile", device=HOPPER).int4_matmul is table["tile"]
    whole = {"int4_matmul": [{"n": 96, "k": 256}]}
    assert select("auto", device=HOPPER, sizes=whole).int4_matmul is fast
    assert select("triton", device=HOPPER).sample is not None


@pytest.mark.parametrize(
    "choice, overrides, device, complaint",
    [
        ("triton", {}, Target(), "needs cuda, this is cpu; use kernel.int4_matmul=tile"),
        ("auto", {"int4_matmul": "triton"}, TURING, "needs compute capability 8.0, this is cuda"),
        ("auto", {"silu_mul": "gluon"}, HOPPER, "no variant 'gluon'; it has reference"),
    ],
)
def test_a_variant_that_cannot_run_names_one_that_can(fast, choice, overrides, device, complaint):
    with pytest.raises(ValueError, match=complaint):
        select(choice, overrides, device)


def test_sizes_that_a_variant_cannot_take_are_refused_before_anything_runs(fast):
    odd = {"int4_matmul": [{"k": 256}, {"k": 200}]}
    with pytest.raises(ValueError, match="needs k to be a multiple of 128, got 200"):
        select("auto", device=HOPPER, sizes=odd)


@pytest.mark.parametrize(
    "sizes, target, reason",
    [
        ({"d": 64, "k": 128, "n": 7}, HOPPER, ""),
        ({"d": 48}, HOPPER, "needs d to be a power of two from 16 on, got 48"),
        ({"d": 8}, HOPPER, "needs d to be a power of two from 16 on, got 8"),
        ({"k": 100}, HOPPER, "needs k to be a multiple of 128, got 100"),
        ({"n": 11}, HOPPER, "takes n up to 10, got 11"),
        ({"float8": 1}, Target("cuda", (8, 6)), "needs compute capability 8.9 for a float8 cache"),
        ({"float8": 0}, Target("cuda", (8, 6)), ""),
        ({"float8": 1}, HOPPER, ""),
        ({"float8": 1}, TURING, "needs compute capability 8.9 for a float8 cache, this is cuda"),
        ({}, TURING, "needs compute capability 8.0, this is cuda 7.5"),
        ({}, Target("cuda", (12, 0)), "is for compute capabilities below 12.0, this is cuda 12.0"),
    ],
    ids=str,
)
def test_sizes_that_a_support_states(sizes, target, reason):
    support = Support(
        devices=("cuda",),
        capability=(8, 0),
        below=(12, 0),
        multiples={"k": 128},
        powers={"d": 16},
        most={"n": 10},
        float8=(8, 9),
    )
    refused = support.refusal(target, sizes)
    assert refused.startswith(reason) and bool(refused) == bool(reason)
