"""Calibrated rounding of one matrix: its grid, its range search, its error at the output."""

import pytest
import torch

from kernels.int4_matmul import layout
from tests.quant.layers import TOKENS, K, N, moments, output_error
from tr.nn.formats.dense import Dense
from tr.quant import refine, rtn
from tr.quant.gptq import damped, gptq, order_of, toward
from tr.quant.grid import plain, restore
from tr.quant.recipe import METHODS, Recipe, convert
from tr.quant.search import search


def test_restored_numbers_are_the_layouts(weight):
    made = convert(Dense(weight=weight, splits=(N,)), None, Recipe("mse"))
    codes, scale, minimum = layout.unpack(made.tiles, N)
    ours = restore(codes.unflatten(1, (-1, 128)), scale[..., None], minimum[..., None]).flatten(1)
    assert torch.equal(ours, made.weight(torch.bfloat16).float())


def test_rtn_is_what_loading_does(weight):
    dense = Dense(weight=weight.bfloat16(), splits=(40, 24))
    ours, theirs = convert(dense, None, Recipe("rtn")), rtn.quantise(dense)[0]
    assert torch.equal(ours.tiles, theirs.tiles) and ours.splits == (40, 24)


def test_gaussian_error_of_the_search():
    """Both ends on their own: 0.00821 of the power; the ends of the group: 0.00997."""
    w = torch.randn(4096, 128, generator=torch.Generator().manual_seed(0))
    grid = search(w)
    assert (grid.values(grid.codes(w)) - w).square().mean() < 0.0083
    assert (grid.scale > 0).all()


def test_the_search_weighs_inputs():
    g = torch.Generator().manual_seed(0)
    w, weight = torch.randn(512, 128, generator=g), torch.randn(128, generator=g).exp() ** 2

    def error(grid) -> float:
        return (weight * (grid.values(grid.codes(w)) - w).square()).sum().item()

    assert error(search(w, weight)) < 0.9 * error(search(w)) < 0.9 * error(plain(w))


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_constant_groups(value):
    w = torch.full((3, 128), value)
    grid = search(w)
    assert torch.equal(grid.values(grid.codes(w)), w)


def test_each_method_beats_the_one_before(weight, inputs):
    x, held_out = inputs[:TOKENS], inputs[TOKENS:]
    dense, seen = Dense(weight=weight, splits=(N,)), moments(x)
    errors = [
        output_error(convert(dense, seen, recipe), weight, held_out)
        for recipe in (
            Recipe("rtn"),
            Recipe("gptq", "none"),
            Recipe("gptq", "plain"),
            Recipe("gptq"),
        )
    ]
    assert errors[1] < 0.8 * errors[0], errors
    assert errors[2] < 0.99 * errors[1] and errors[3] < 0.98 * errors[2], errors


def test_targets_of_the_unquantised_inputs(weight, inputs):
    """Inputs that earlier rounding moved: gptaq comes nearer to the right outputs than gptq."""
    noise = torch.randn(K, K, generator=torch.Generator().manual_seed(2)) * 0.05 * K**-0.5
    right, x = inputs, inputs + inputs @ noise
    dense, seen = Dense(weight=weight, splits=(N,)), moments(x[:TOKENS], right[:TOKENS])
    errors = [
        output_error(convert(dense, seen, Recipe(method)), weight, x[TOKENS:], right[TOKENS:])
        for method in ("gptq", "gptaq")
    ]
    assert errors[1] < 0.9 * errors[0], errors


def test_refinement_lowers_the_cost_of_every_row(weight, inputs):
    h = moments(inputs[:TOKENS]).h
    start = gptq(weight, h, 128, lambda i, w, _: plain(w), 0.01, ordered=True)
    costs = [refine.cost(weight, damped(h, 0.01).float(), start.values)]
    for rounds in (1, 3):
        made = refine.refine(weight, h, start, 0.01, rounds)
        costs.append(refine.cost(weight, damped(h, 0.01).float(), made.values))
    assert (costs[1] <= costs[0] * 1.0001).all() and (costs[2] <= costs[1] * 1.0001).all()
    assert costs[2].mean() < 0.99 * costs[0].mean()


def test_refitted_grids_are_least_squares(weight, inputs):
    """Before rounding to bfloat16, no nearby scales and minimums cost less."""
    h = damped(moments(inputs[:TOKENS]).h, 0.01).float()
    start = gptq(weight, h, 128, lambda i, w, _: plain(w), 0.01, ordered=False)
    scale = torch.cat([g.scale for g in start.grids], 1)
    minimum = torch.cat([g.minimum for g in start.grids], 1)
    s, m = refine.refit(weight, h, start.codes, scale, minimum)

    def cost(s, m) -> float:
        q = start.codes.unflatten(1, (2, 128)) * s.float()[..., None] + m.float()[..., None]
        return refine.cost(weight, h, q.flatten(1)).sum().item()

    best = cost(s, m)
    assert best < cost(scale, minimum)
    for sign in (-1, 1):
        assert best < cost(s * (1 + 0.02 * sign), m) and best < cost(s, m + 0.2 * sign * s)


def test_targets_are_least_squares(weight):
    x = torch.randn(TOKENS, K)
    right = x + 0.3 * x.roll(1, 1)
    seen = moments(x, right)
    assert seen.cross is not None
    ours = toward(weight, seen.h, seen.cross, 1e-9)
    best = torch.linalg.lstsq(x.double(), right.double() @ weight.double().t()).solution.t()
    torch.testing.assert_close(ours.double(), best, rtol=1e-3, atol=1e-4)


def test_without_correlation_it_is_rounding_to_nearest(weight):
    made = gptq(weight, torch.eye(K), 128, lambda i, w, _: plain(w), 0.01, ordered=False)
    parts = weight.split(128, 1)
    want = torch.cat([plain(p).codes(p) for p in parts], 1)
    assert torch.equal(made.codes, want)


def test_the_order_keeps_groups_and_comes_undone(weight, inputs):
    h = moments(inputs[:TOKENS]).h
    order = order_of(h, 128)
    assert torch.equal(order.sort().values, torch.arange(K))
    for part in order.split(128):
        assert len(set((part // 128).tolist())) == 1
        assert (h.diagonal()[part].diff() <= 0).all()
    made = gptq(weight, h, 128, lambda i, w, _: plain(w), 0.01, ordered=True)
    near = (made.values - weight).square().mean() / weight.square().mean()
    assert near < 0.05  # another order of columns would be unrelated: 2


def test_inputs_that_never_came(weight, inputs):
    x = inputs[:TOKENS].clone()
    x[:, 7] = 0
    made = convert(Dense(weight=weight, splits=(N,)), moments(x), Recipe("gptq"))
    restored = made.weight(torch.float32)
    assert restored.isfinite().all()
    step = made.scale[:, 0].float()
    assert ((restored[:, 7] - weight[:, 7]).abs() <= 4 * step).all()


def test_bad_input(weight):
    odd = Dense(weight=weight[:, :200], splits=(N,))
    with pytest.raises(ValueError, match="200 inputs, no multiple of 128"):
        convert(odd, None, Recipe("rtn"))
    with pytest.raises(ValueError, match="calibration inputs hold infinite or missing"):
        damped(torch.full((128, 128), torch.nan), 0.01)
    with pytest.raises(ValueError, match="weights hold infinite or missing"):
        search(torch.full((2, 128), torch.inf))


def test_methods_are_those_of_the_config():
    from tr.config import QUANT_METHODS

    assert METHODS == QUANT_METHODS
