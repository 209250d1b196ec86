"""The step experiments on the embedded model: what they report, and that timing leaves no trace."""

import pytest
import torch

from experiments import repeat, stepping
from tests.experiments.runs import record_of
from tr.assemble import assemble
from tr.model.sampling import sampling
from tr.overrides import load
from tr.tree import tensors


@pytest.fixture(scope="module")
def model():
    small = ["model=smoke", "weights=random", "draft=raw", "device=cpu", "prompt=x"]
    return assemble(load(small, "generate")).model


def run(tmp_path, *args):
    return record_of(tmp_path, "device=cpu", *args)


def test_decode_reports_every_context(tmp_path):
    record = run(tmp_path, "+exp=decode", "params.contexts=[0,600]", "params.rounds=1")
    contexts = record["figures"]["contexts"]
    assert set(contexts) == {"0", "600"}
    for values in contexts.values():
        assert values["tokens_per_s"] == pytest.approx(1e3 / values["step_ms"])
        wall = record["figures"]["wall_gb_per_s"] * 1e9
        share = values["bytes_per_step"] / (values["step_ms"] * 1e-3) / wall
        assert values["wall_fraction"] == pytest.approx(share)
    assert contexts["600"]["bytes_per_step"] > contexts["0"]["bytes_per_step"]
    assert record["device"]["read_gb_per_s"] > 0


def test_contexts_past_the_window_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\[9000\] exceed the model's 8191"):
        run(tmp_path, "+exp=decode", "params.contexts=[0,9000]")


def test_verify_cost_is_relative_to_one_row(tmp_path):
    record = run(tmp_path, "+exp=verify_cost", "params.rows=[1,3]", "params.rounds=1")
    rows = record["figures"]["rows"]
    assert rows["1"]["ratio"] == 1
    assert rows["3"]["ratio"] == pytest.approx(rows["3"]["step_ms"] / rows["1"]["step_ms"])


def test_a_draft_s_whole_step_stands_beside_a_raw_one_of_the_same_run(tmp_path):
    args = "+exp=verify_cost", "params.rows=[1]", "params.rounds=1", "params.context=40"
    assert "speculative" not in run(tmp_path / "raw", *args)["figures"]
    small = "draft.tokens=3", "draft.random.layers=1"
    figures = run(tmp_path / "draft", *args, "draft=dflash2", *small)["figures"]
    whole = figures["speculative"]
    assert whole["rows"] == 4 and whole["raw_step_ms"] == figures["rows"]["1"]["step_ms"]
    assert whole["draft_ms"] == whole["step_ms"] - whole["verify_step_ms"]
    assert whole["ratio"] == whole["step_ms"] / whole["raw_step_ms"]


def test_a_state_in_mid_text_has_random_finite_buffers(model):
    state, again = (repeat.state_at(model, 700, 4, 1024, seed=1) for _ in range(2))
    assert int(state.target.pos) == int(state.feed.pos) == 700
    for name, x in tensors(state).items():
        assert torch.equal(x, tensors(again)[name]) and torch.isfinite(x).all()
        if name.startswith("target.layers"):
            assert x.float().std() > 0, name


def test_timing_steps_stays_at_its_context(model):
    state = repeat.state_at(model, 100, 4, 512, seed=0)
    for rows in (1, 4):
        ms, state = stepping.step_ms(model, state, sampling(), rows, rounds=2)
        assert ms > 0 and int(state.feed.pos) == int(state.target.pos) == 100
        assert int(state.target.pending) == rows


def test_a_card_s_times_say_what_launched_the_steps():
    config = load(["+exp=decode", "device=cpu"])
    assert stepping.warnings(config, torch.device("cpu")) == ()
    (said,) = stepping.warnings(config, torch.device("cuda"))
    assert "jit=eager: launches by the host" in said
    config.jit.backend = "cuda_graph"
    assert stepping.warnings(config, torch.device("cuda")) == ()
