"""The 27B's bytes as published and as counted by hand."""

import pytest

from tr.overrides import load
from tr.roofline import largest_context, matrices, plan


@pytest.fixture(scope="module")
def shape():
    return load(["model=qwen3_8_27b", "+exp=plan"]).model.spec()


def test_large_matrices_hold_the_published_number_of_weights(shape):
    assert sum(n * rows * k for n, rows, k in matrices(shape).values()) == 25_598_361_600


def test_a_raw_step_at_four_and_a_quarter_bits(shape):
    step = plan(shape, "int4_g128")
    moved = {item.name: item.moved for item in step.items}
    assert moved["recurrent state"] == 2 * 150_994_944
    assert sum(moved[name] for name in matrices(shape)) == pytest.approx(13.599e9, rel=1e-4)
    assert step.moved == pytest.approx(13.954e9, rel=2e-4)


@pytest.mark.parametrize("kv, per_token", [("bf16", 65_536), ("fp8", 32_768)])
def test_cache_bytes_grow_by_the_token(shape, kv, per_token):
    empty, full = plan(shape, "int4_g128", kv, 0), plan(shape, "int4_g128", kv, 200_000)
    assert full.moved - empty.moved == 200_000 * per_token
    assert full.held - empty.held == 200_000 * per_token


def test_rows_add_next_to_nothing(shape):
    assert plan(shape, "int4_g128", rows=16).moved < 1.001 * plan(shape, "int4_g128").moved


def test_the_largest_context_fits_and_one_token_more_does_not(shape):
    memory = 22.2 * 2**30
    most = largest_context(shape, "int4_g128", "bf16", memory)
    assert 0 < most < shape.max_positions
    assert plan(shape, "int4_g128", capacity=most).held <= memory
    assert plan(shape, "int4_g128", capacity=most + 1).held > memory
    assert largest_context(shape, "bf16", "bf16", memory) == 0


def test_formats_are_refused_by_name(shape):
    with pytest.raises(ValueError, match="quant: expected bf16 or int4_g128, got 'int3'"):
        plan(shape, "int3")
    with pytest.raises(ValueError, match="kv: expected bf16 or fp8"):
        plan(shape, kv="int2")
    small = load(["model=tiny", "model.d_ff=500"], "generate").model.spec()
    with pytest.raises(ValueError, match="mlp down has 500 columns, not a multiple of 128"):
        plan(small, "int4_g128")
