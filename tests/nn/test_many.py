"""Many tokens times int4 weights by operators: blocks do not show; 8 bits cost what they say."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.registry import select
from tests.nn.test_int4 import drawn
from tr.nn.formats import int4 as formats
from tr.nn.formats.int4 import int4, pack
from tr.nn.formats.many import SHORT, UNIT, Many, block_tiles, multiply

OPS = select()


@given(st.integers(1, 4000), st.integers(1, 40000), st.integers(1, 2**31))
def test_blocks_are_even_whole_units_and_within_the_scratch(row_tiles, row_bytes, scratch):
    step = block_tiles(row_tiles, row_bytes, scratch)
    assert step % UNIT == 0 and step > 0
    assert step == UNIT or step * 64 * row_bytes <= scratch
    blocks = -(-row_tiles // step)
    assert row_tiles > (blocks - 1) * step  # none is empty
    last = row_tiles - (blocks - 1) * step
    assert step - last < UNIT * blocks  # evened out, but for what whole units ask


def test_the_27b_s_matrices_are_restored_whole():
    for n, k in ((34816, 5120), (5120, 17408), (16384, 5120), (14336, 5120), (5120, 6144)):
        assert block_tiles(n // 64, 2 * k, Many().scratch) == n // 64


@pytest.mark.parametrize("scratch", [1, 2**17, 2**29])
@pytest.mark.parametrize("n", [330, 1024])
def test_the_product_is_that_of_the_restored_weights(n, scratch):
    """Blocks write into their columns of one result; n is no multiple of a tile, or of many."""
    packed = pack(*drawn(n, 256), [n])
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(70, 256).to(dtype)
        y = multiply(x, packed.tiles, n, Many(scratch=scratch), OPS, packed.restore(OPS))
        exact = x.double() @ packed.weight(dtype).double().T
        assert y.shape == (70, n) and y.dtype == dtype and y.is_contiguous()
        assert (y - exact).abs().max() <= 4 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("activations, error", [("int8", 0.015), ("fp8", 0.05)])
@pytest.mark.parametrize("scratch", [1, 2**29])
def test_what_8_bits_cost(activations, error, scratch):
    """Relative to the result, of normal tokens and weights: 0.9 and 3.7 percent."""
    packed = int4([330], 512, torch.Generator().manual_seed(0))
    x = torch.randn(100, 512).bfloat16()
    y = multiply(x, packed.tiles, 330, Many(activations, scratch), OPS, packed.restore(OPS))
    exact = x.double() @ packed.weight(torch.float64).T
    distance = ((y - exact).norm() / exact.norm()).item()
    assert error / 3 < distance < error
    x[7, 3] = torch.nan
    y = multiply(x, packed.tiles, 330, Many(activations, scratch), OPS, packed.restore(OPS))
    assert y[7].isnan().all() and y[:7].isfinite().all() and y[8:].isfinite().all()


@pytest.mark.parametrize("activations", ["int8", "fp8"])
def test_a_token_s_scale_is_its_own(activations):
    packed = pack(*drawn(128, 128), [128])
    x = torch.randn(80, 128)
    many = Many(activations)
    whole = multiply(x, packed.tiles, 128, many, OPS, packed.restore(OPS))
    other = torch.cat([x[:40], 1000 * torch.randn(40, 128)])
    again = multiply(other, packed.tiles, 128, many, OPS, packed.restore(OPS))
    assert torch.equal(again[:40], whole[:40])


def test_the_count_of_tokens_decides_and_nothing_else():
    """Up to SHORT tokens keep their dtype, whatever shape they come in."""
    plain = pack(*drawn(128, 128), [128])
    packed = dataclasses.replace(plain, many=Many("int8"))
    x = torch.randn(SHORT + 1, 128)
    assert torch.equal(packed.sequence(x[:8], OPS), plain.sequence(x[:8]))
    assert torch.equal(packed.sequence(x[:SHORT], OPS), plain.sequence(x[:SHORT]))
    rounded = packed.sequence(x, OPS)
    assert not torch.equal(rounded, plain.sequence(x))
    assert torch.equal(packed.sequence(x[None], OPS), rounded[None])
    assert torch.equal(packed.sequence(x), plain.sequence(x))  # without operators: differentiable


def test_parts_of_a_matrix_multiply_as_it_does():
    packed = dataclasses.replace(pack(*drawn(256, 128), [128, 128]), many=Many("fp8"))
    parts = packed.after(1), packed.first(64), packed.take(torch.arange(3))
    assert all(isinstance(p, formats.Int4) and p.many == packed.many for p in parts)
    x = torch.randn(100, 128)
    assert torch.equal(parts[0].sequence(x, OPS), packed.sequence(x, OPS)[:, 128:])


@pytest.mark.gpu
@pytest.mark.parametrize("activations", ["bf16", "int8", "fp8"])
@pytest.mark.parametrize("scratch", [2**23, 2**29])
def test_on_a_card_the_library_multiplies_the_same_numbers(activations, scratch):
    ops = select(device=torch.device("cuda"))
    made = int4([1024, 1000], 2048, torch.Generator("cuda").manual_seed(0))
    made = dataclasses.replace(made, many=Many(activations, scratch))
    for tokens in (8, 64, 65, 1000):
        x = torch.randn(tokens, 2048, device="cuda").bfloat16()
        y = made.sequence(x, ops)
        exact = x.double() @ made.weight(torch.float64).T
        distance = ((y - exact).norm() / exact.norm()).item()
        most = {"bf16": 0.005, "int8": 0.015, "fp8": 0.05}
        assert distance < most["bf16" if tokens <= SHORT else activations], (tokens, distance)
        assert torch.equal(made.sequence(x, ops), y)
