"""step_profile and compile_compare on a small model, and what they repeat a step on."""

import dataclasses
import shutil
from collections import Counter

import pytest
import torch

from experiments import step_profile
from experiments.compile_compare import same_bits
from experiments.repeat import draft, state_at
from experiments.trace import counted
from kernels.registry import select
from tests.decode.small import dflash2_draft, model
from tests.experiments.runs import record_of
from tr.assemble import assemble, sampling_of
from tr.drafts.dflash2 import Dflash2
from tr.drafts.dflash2_step import fuse
from tr.model.sampling import sampling
from tr.overrides import load
from tr.tree import tensors

SMALL = ("model=smoke", "weights=random", "device=cpu", "params.rounds=1")
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


def run(tmp_path, name, *args):
    return record_of(tmp_path, f"+exp={name}", *SMALL, *args)


@pytest.fixture(scope="module")
def made():
    config = load(["model=smoke", "weights=random", "device=cpu", "prompt=x"], "generate")
    return assemble(config), sampling_of(config)


def test_a_step_is_accounted_for(tmp_path):
    record = run(tmp_path, "step_profile", "params.rows=[1,8]", "params.steps=2")
    figures = record["figures"]
    for rows, step in figures["rows"].items():
        operators = figures["operators"][rows]
        assert {"add_rms_norm", "gated_delta_step", "attention_decode", "sample"} <= set(operators)
        assert step["launches"] == sum(o["launches"] for o in operators.values())
        assert step["busy_us"] == pytest.approx(sum(o["us"] for o in operators.values()))
        assert step["gap_us"] == pytest.approx(max(0, step["step_us"] - step["busy_us"]))
        for values in operators.values():
            assert values["us"] > 0 and values["bytes"] > 0
            assert values["gb_per_s"] == pytest.approx(values["bytes"] / values["us"] * 1e-3)
        counts = {name: o["launches"] for name, o in operators.items()}
        assert counts["gated_delta_step"] == 3 and counts["attention_decode"] == 1  # of four layers
    assert record["device"]["matmul_tflops"] > 0
    assert (tmp_path / "out" / "step_us.png").exists()


def test_a_strategy_s_operators_are_listed_apart():
    small, moved = model(), Counter()
    plain = dflash2_draft(small)
    assert isinstance(plain, Dflash2)
    fused = dataclasses.replace(plain, fused=fuse(plain.params, select("reference")))
    named = step_profile.through(fused, counted(select("reference"), moved, step_profile.DRAFT))
    assert step_profile.through(plain, small.ops) is plain
    with torch.inference_mode():
        state = state_at(small, 40, 8, 512, 1, fused)
        assert all(x.float().std() > 0 for x in tensors(state.draft).values())
        small.step(named, state, sampling(), 8)
    assert moved["draft.dflash_attention"] > 0
    assert {name.split(".")[0] for name in moved} == {"draft"}


def test_timed_steps_start_where_the_profiled_ones_do(made, monkeypatch):
    """A captured step is profiled, timed and profiled again on storage that ends with its rows."""
    assembly, sampling = made
    state = state_at(assembly.model, 0, 8, 8, seed=0)
    place, starts = step_profile.Place(state, sampling, 8, 0, draft(8)), []
    timed = step_profile.step_ms

    def noted(model, state, *args):
        starts.append((int(state.feed.pos), int(state.target.pos), int(state.target.pending)))
        return timed(model, state, *args)

    monkeypatch.setattr(step_profile, "step_ms", noted)
    options = step_profile.Options(steps=2, rounds=2)
    ms, _ = step_profile._on_card(place, assembly, options, torch.device("cpu"))
    assert ms > 0 and starts == [(0, 0, 8)]


def test_backends_that_cannot_run_are_listed(tmp_path):
    args = ("params.backends=[eager,cuda_graph]", "params.rows=3", "params.steps=2")
    figures = run(tmp_path, "compile_compare", *args)["figures"]["backends"]
    assert figures["eager"]["equal"] and figures["eager"]["step_ms"] > 0
    assert "cuda_graph" in figures["cuda_graph"]["refused"]
    assert figures["cuda_graph"]["step_ms"] is None


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="Inductor needs a C++ compiler on a CPU")
def test_a_compiled_step_has_the_bits_of_an_eager_one(tmp_path):
    small = ("model.layers=2", "model.full_attention_interval=2", "params.steps=2")
    record = run(tmp_path, "compile_compare", "params.backends=[inductor]", *small)
    inductor = record["figures"]["backends"]["inductor"]
    assert inductor["equal"] and inductor["build_s"] > 0 and not record["warnings"]


def test_an_unknown_backend_is_named(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'inductor'"):
        run(tmp_path, "compile_compare", "params.backends=[indcutor]")


def test_bits_are_compared_not_values():
    x = torch.tensor([0.0, torch.nan])
    assert same_bits(x, x.clone()) and not same_bits(x, torch.tensor([-0.0, torch.nan]))
    assert not same_bits(x, x[:1])


@pytest.mark.parametrize("context, rows", [(0, 1), (300, 8)])
def test_a_repeated_step_starts_from_the_same_random_state(made, context, rows):
    assembly, sampling = made
    model = assembly.model
    a, b = (state_at(model, context, rows, 512, seed=1) for _ in range(2))
    for name, x in tensors(a).items():
        assert same_bits(x, tensors(b)[name])
    if context:  # caches hold no row before it
        assert all(x.float().std() > 0 for x in tensors(a.target.layers).values())
    assert int(a.feed.pos) == int(a.target.pos) == context
    with torch.inference_mode():
        result, logits, after = model.step(draft(rows), a, sampling, rows)
    kept = int(result[0])
    assert 1 <= kept <= rows and logits.shape[0] == rows and logits.isfinite().all()
    assert int(after.feed.pos) == int(after.target.pos) == context + kept
