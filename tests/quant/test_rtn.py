"""Rounding to nearest: its error on known distributions, and a whole model turned into int4."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.registry import select
from tests.model.small import CAPACITY, CONFIG, random_mtp, random_params, random_tokens
from tr.model import mtp, text
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.quant import rtn
from tr.tree import tensors

SHAPE = dataclasses.replace(CONFIG, d_ff=256, d_v=64, k_heads=2, v_heads=4, vocab=192)


def test_codes_are_the_nearest_and_parameters_are_rounded_first():
    w = torch.randn(70, 384).bfloat16()
    codes, scale, minimum = rtn.round_to_nearest(w)
    s, m = (t.float().repeat_interleave(128, 1) for t in (scale, minimum))
    levels = s[..., None] * torch.arange(16) + m[..., None]  # [70, 384, 16]
    nearest = (levels - w.float()[..., None]).abs().amin(-1)
    error = (codes * s + m - w.float()).abs()
    assert (error <= nearest * 1.0001 + 1e-7).all()
    groups = w.float().unflatten(1, (3, 128))
    assert torch.equal(minimum, groups.amin(-1).bfloat16())
    assert torch.equal(scale, ((groups.amax(-1) - groups.amin(-1)) / 15).bfloat16())
    assert int(codes.min()) == 0 and int(codes.max()) == 15


def test_gaussian_error_is_that_of_the_grid():
    """A uniform grid of 16 levels between the ends of 128 normal draws: 0.00997 of the power."""
    w = torch.randn(4096, 128, generator=torch.Generator().manual_seed(0))
    _, figures = rtn.quantise(Dense(weight=w, splits=(4096,)))
    assert abs(figures.relative_error**2 / 0.00997 - 1) < 0.02
    assert figures.bits_per_weight == 4.25 and figures.shape == (4096, 128)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_constant_groups(value):
    made, figures = rtn.quantise(Dense(weight=torch.full((3, 128), value), splits=(3,)))
    assert torch.equal(made.weight(torch.float32), torch.full((3, 128), value))
    assert figures.relative_error == 0 and (made.scale == 1).all()


def test_blocks_of_rows_change_nothing(monkeypatch):
    dense = Dense(weight=torch.randn(200, 256), splits=(150, 50))
    whole, figures = rtn.quantise(dense)
    monkeypatch.setattr(rtn, "BLOCK", 1)
    blocks, again = rtn.quantise(dense)
    assert torch.equal(whole.tiles, blocks.tiles) and blocks.splits == (150, 50)
    assert abs(figures.relative_error - again.relative_error) < 1e-6
    assert figures.bits_per_weight == 256 / 200 * 4.25  # 200 rows fill four tiles of 64


def test_a_whole_model():
    params = random_params(torch.float32, SHAPE)
    done, report = rtn.quantise_all(params)
    kinds = {c.name: c for c in report.converted}
    assert "layers[0].mixer.in_qkvz" in kinds and "lm_head" in kinds
    assert all(
        isinstance(p.mlp.gate_up, Int4) and isinstance(p.mlp.down, Int4) for p in done.layers
    )
    assert report.kept == tuple(f"layers[{i}].mixer.in_ba" for i in (0, 1, 3))
    before, after = tensors(params), tensors(done)
    for name in ("embed", "norm", "layers[0].mixer.conv", "layers[0].mixer.in_ba.weight"):
        assert after[name] is before[name]
    assert 4.25 <= report.bits_per_weight < 4.3
    assert all(0.05 < c.relative_error < 0.12 for c in report.converted)
    heads, _ = rtn.quantise_all(random_mtp(torch.float32, SHAPE))
    assert isinstance(heads.fc, Int4)


@pytest.mark.parametrize("tied", [False, True])
def test_the_quantised_model_decodes_as_its_dense_twin(tied):
    """Steps on tiles equal steps on the restored fp32 weights, up to summation order."""
    config = dataclasses.replace(SHAPE, tie_embeddings=tied)
    done, _ = rtn.quantise_all(random_params(torch.float32, config))
    assert isinstance(done.lm_head, Int4)
    ops = select()
    tokens = random_tokens(5)
    logits = []
    for params in (done, _restored(done)):
        state = text.init_state(params, CAPACITY, 16)
        rows, _ = text.step(params, state, tokens, ops)
        logits.append(rows.logits)
    assert (logits[0] - logits[1]).abs().max() < 1e-4 * logits[1].abs().max()
    hidden, _, _ = text.sequence(done, text.init_past(done, 1), tokens[None])
    whole = done.head.sequence(hidden)[0]
    assert (whole - logits[0]).abs().max() < 1e-3 * whole.abs().max()


def _restored(params):
    from torch.utils import _pytree as pytree

    def dense(x):
        return Dense(weight=x.weight(torch.float32), splits=x.splits) if isinstance(x, Int4) else x

    return pytree.tree_map(dense, params, is_leaf=lambda x: isinstance(x, Int4))


@pytest.mark.parametrize("tied", [False, True])
def test_random_codes_make_the_model_that_quantising_makes(tied):
    """The same kinds and shapes by name, deterministic by seed, and no wide matrix on the way."""
    config = dataclasses.replace(SHAPE, tie_embeddings=tied)

    def made(seed):
        g = torch.Generator().manual_seed(seed)
        with Widest() as widest:
            params = text.init(config, g, torch.bfloat16, rtn.random)
            head = mtp.init(config, g, torch.bfloat16, rtn.random)
        assert widest.numbers <= config.vocab * config.d_model  # the embedding's own block
        return rtn.quantise_all(params)[0], rtn.quantise_all(head)[0]

    g = torch.Generator().manual_seed(0)
    dense = text.init(config, g, torch.bfloat16), mtp.init(config, g, torch.bfloat16)
    assert config.d_ff * 2 * config.d_model > config.vocab * config.d_model
    for a, b, again, other in zip(dense, made(0), made(0), made(1), strict=True):
        want, got = tensors(rtn.quantise_all(a)[0]), tensors(b)
        assert {k: (t.shape, t.dtype) for k, t in want.items()} == {
            k: (t.shape, t.dtype) for k, t in got.items()
        }
        assert all(torch.equal(t, tensors(again)[k]) for k, t in got.items())
        tiles = [k for k in got if k.endswith(".tiles")]
        assert tiles and not any(torch.equal(got[k], tensors(other)[k]) for k in tiles)
    logits = text.step(
        made(0)[0], text.init_state(made(0)[0], CAPACITY, 4), random_tokens(4), select()
    )[0].logits
    assert logits.isfinite().all() and logits.float().std() > 0


class Widest(TorchDispatchMode):
    """Watches the largest floating tensor that is made; views of int16 words are none."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point() and not out._is_view():
            self.numbers = max(self.numbers, out.numel())
        return out


def test_refusals():
    with pytest.raises(ValueError, match="infinite or missing"):
        rtn.round_to_nearest(torch.full((2, 128), torch.nan))
    odd = random_params(torch.float32, dataclasses.replace(SHAPE, d_ff=200))
    with pytest.raises(
        ValueError, match=r"mlp.down has 200 inputs, no multiple of the group of 128"
    ):
        rtn.quantise_all(odd)
