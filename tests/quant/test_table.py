"""The table's quantiser: its bits, its levels, its error beside the uniform grid's."""

import pytest
import torch

from kernels.registry import select
from tests.quant.layers import TOKENS, N, moments, output_error
from tr.nn.formats import table4
from tr.nn.formats.dense import Dense
from tr.quant import recipe, table
from tr.quant.gptq import damped
from tr.quant.numbers import bits_per_weight, numbers
from tr.quant.recipe import Recipe
from tr.quant.refine import cost


def test_bits_are_counted_from_what_is_stored():
    made = table.convert(Dense(weight=torch.randn(64, 384), splits=(64,)), None, Recipe("mse"))
    assert bits_per_weight(made) == 4 + 8 / 32 + 8 / 384
    assert made.shape == (64, 384)
    plain = recipe.convert(Dense(weight=torch.randn(64, 384), splits=(64,)), None, Recipe("mse"))
    assert bits_per_weight(plain) == 4.25 and bits_per_weight(torch.zeros(2)) == 16


def test_gaussian_error():
    """Groups of 32, 43 scales to an octave: 0.0053 of the power; a uniform grid leaves 0.0082."""
    w = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    made = table.convert(Dense(weight=w, splits=(256,)), None, Recipe("mse"))
    error = (made.weight(torch.float32) - w).square().mean().item()
    assert 0.0050 < error < 0.0055
    far = table.convert(Dense(weight=w * 2.0**-30, splits=(256,)), None, Recipe("mse"))
    assert torch.equal(far.weight(torch.float32) * 2.0**30, made.weight(torch.float32))


def test_operators_multiply_the_restored_matrix():
    made = table.convert(Dense(weight=torch.randn(48, 128), splits=(32, 16)), None, Recipe("mse"))
    x, dense = torch.randn(5, 128), numbers(made)
    assert isinstance(dense, Dense) and dense.splits == (32, 16)
    assert torch.equal(dense.weight, made.weight(torch.bfloat16))
    weight = made.weight(torch.float32)
    torch.testing.assert_close(made.sequence(x), x @ weight.t())
    torch.testing.assert_close(made.step(x, select()), x @ weight.t(), rtol=1e-4, atol=1e-4)


def test_better_than_the_uniform_grid(weight, inputs):
    dense, seen = Dense(weight=weight, splits=(N,)), moments(inputs[:TOKENS])
    errors = [
        output_error(convert(dense, seen, Recipe("gptq")), weight, inputs[TOKENS:])
        for convert in (recipe.convert, table.convert)
    ]
    assert errors[1] < 0.9 * errors[0], errors
    refined = table.convert(dense, seen, Recipe("refined"))
    h = damped(seen.h, 0.01).float()
    plain, better = (
        cost(weight, h, made.weight(torch.bfloat16).float()).sum()
        for made in (table.convert(dense, seen, Recipe("gptq")), refined)
    )
    assert better < 0.99 * plain


def test_levels_are_what_is_restored():
    """And codes the nearest of them, but for the rounding of a level."""
    w = torch.randn(64, 128)
    exponent = table.exponents(w)
    grids = [table.Levels(exponent, torch.randint(190, 256, (64, 1))) for _ in range(4)]
    parts = w.split(32, 1)
    codes = torch.cat([g.codes(p) for g, p in zip(grids, parts, strict=True)], 1).byte()
    groups = torch.cat([g.byte for g in grids], 1).byte()
    made = table4.pack(codes, groups, exponent[:, 0].to(torch.int8), [64])
    restored = made.weight(torch.float32)
    for grid, part, own, got in zip(
        grids, parts, codes.split(32, 1), restored.split(32, 1), strict=True
    ):
        assert torch.equal(grid.values(own), got)
        levels = grid.values(torch.arange(16).expand(64, 16))
        best = (levels[:, None] - part[..., None]).abs().amin(-1)
        assert ((got - part).abs() <= best + 0.004 * part.abs().amax()).all()


def test_zero_rows_and_what_is_refused():
    w = torch.zeros(2, 128)
    w[1] = torch.linspace(-1, 1, 128)
    made = table.convert(Dense(weight=w, splits=(2,)), None, Recipe("mse"))
    assert (made.weight(torch.float32)[0].abs() < 1e-20).all()
    assert (made.weight(torch.float32)[1] - w[1]).abs().max() < 0.1
    with pytest.raises(ValueError, match="multiple of 128, got 96"):
        table.convert(Dense(weight=torch.zeros(2, 96), splits=(2,)), None, Recipe("mse"))
    dense = Dense(weight=w, splits=(2,))
    with pytest.raises(ValueError, match="quant.method=tuned, quant.zero_point=free are for int4"):
        table.convert(dense, None, Recipe("tuned"))
    w[0, 3] = torch.nan
    with pytest.raises(ValueError, match="infinite or missing"):
        table.convert(dense, None, Recipe("mse"))
