"""The 27B's bytes as published and as counted by hand."""

from dataclasses import replace

import pytest

from tr.overrides import load
from tr.roofline import largest_context, mtp_items, plan


@pytest.fixture(scope="module")
def shape():
    return load(["model=qwen3_8_27b", "+exp=plan"]).model.spec()


def test_large_matrices_hold_the_published_number_of_weights(shape):
    assert sum(n * rows * k for n, rows, k in shape.matrices.values()) == 25_598_361_600


def test_a_raw_step_at_four_and_a_quarter_bits(shape):
    step = plan(shape, "int4_g128")
    moved = {item.name: item.moved for item in step.items}
    assert moved["recurrent state"] == 2 * 150_994_944
    assert sum(moved[name] for name in shape.matrices) == pytest.approx(13.599e9, rel=1e-4)
    assert step.moved == pytest.approx(13.954e9, rel=2e-4)


WEIGHTS = 13_651_616_768  # 25,598,361,600 at 4.25 bits, gates, convolutions, norms, one row
STATE = 2 * 150_994_944


@pytest.mark.parametrize(
    "context, cache",
    [
        (0, 32_768),
        (8_192, 268_468_224),
        (32_768, 1_073_774_592),
        (131_072, 4_295_000_064),
        (200_000, 6_553_632_768),
    ],
)
def test_a_step_reads_each_byte_once_and_the_state_twice(shape, context, cache):
    """By hand: 2 (k, v) x 16 layers x 4 heads x 256 bytes a token, the new one written."""
    step = plan(shape, "int4_g128", "fp8", context)
    moved = {item.name: item.moved for item in step.items}
    assert moved["key-value cache"] == cache
    assert step.moved == WEIGHTS + STATE + cache
    assert moved["lm_head"] == 675_430_400 and moved["embedding"] == 10_240
    assert moved["gates, convolutions, norms"] == 47_185_920 + 3_932_160 + 1_358_848


def test_rows_read_the_cache_once(shape):
    one, many = (plan(shape, "int4_g128", "fp8", 32_768, rows) for rows in (1, 8))
    assert many.moved - one.moved == 7 * (32_768 + 10_240)


def test_the_head_of_the_27b_in_int4(shape):
    """424.7 million weights, 225.6 MB in the published count."""
    head, cache = mtp_items(shape, "int4_g128", "fp8", 1000)
    assert head.held == pytest.approx(225.6e6, rel=1e-3) and cache.held == 1000 * 2048
    assert mtp_items(replace(shape, mtp_layers=0), "bf16", "bf16", 10) == ()


def test_a_table_names_what_is_held(shape):
    lines = plan(shape, "int4_g128", "fp8", capacity=200_000).table().splitlines()
    assert any(line.split()[-2:] == ["6.554", "GB"] and "cache" in line for line in lines)
    assert lines[-1].split()[0] == "total"


@pytest.mark.parametrize(
    "kv, per_token", [("bf16", 65_536), ("fp8", 32_768), ("int8", 33_280), ("int4", 16_896)]
)
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
    with pytest.raises(ValueError, match="quant: expected bf16 or int4_g128 or table4, got 'int3'"):
        plan(shape, "int3")
    with pytest.raises(ValueError, match="kv: expected bf16 or fp8"):
        plan(shape, kv="int2")
    small = load(["model=tiny", "model.d_ff=500"], "generate").model.spec()
    with pytest.raises(ValueError, match="mlp down has 500 columns, not a multiple of 128"):
        plan(small, "int4_g128")
