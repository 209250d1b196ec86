"""Each switch is off alone and then with those before it; bits that may not depend on it do not."""

from dataclasses import replace

import pytest
import torch

from experiments import ablation
from kernels import gpu
from kernels.define import Target
from kernels.gpu import Launching, dependent_launch, fetches_ahead, launching
from kernels.registry import select
from kernels.switches import launched, separated
from tests.experiments.runs import run
from tr.assemble import assemble
from tr.decode.step import Model
from tr.model.sampling import sampling
from tr.operators import operators
from tr.overrides import load

SMALL = ("+exp=ablation", "model=smoke", "weights=random", "device=cpu", "params.steps=2")
SMALL += ("params.rounds=1", "quant=int4_g128")
HOPPER = Target("cuda", (9, 0))


def lab_of(*args):
    config = load([*SMALL, *args])
    made = assemble(config, 64)
    with torch.inference_mode():
        return ablation.Lab(config, config.options(ablation.Options), made, sampling(), 64)


@pytest.fixture(scope="module")
def lab():
    return lab_of("params.rows=[1,3]")


def test_a_record_holds_each_switch_off_alone_and_with_those_before_it(tmp_path):
    chosen = ["attention_decode", "separate_int4_add_norm"]
    code, record = run(tmp_path, *SMALL, f"params.switches=[{','.join(chosen)}]")
    figures = record["figures"]
    assert code == 0
    assert set(figures["baseline"]) == {"1", "8"}
    assert list(figures["switches"]) == list(figures["cumulative"]) == chosen
    override = "kernel.separate=[int4_add_norm]"
    assert figures["off"][chosen[1]] == {"override": override, "exact": False}
    assert figures["cumulative"][chosen[0]] == figures["switches"][chosen[0]]
    equal = {}
    for kind in ("switches", "cumulative"):
        for name, rows in figures[kind].items():
            for values in rows.values():
                cost = values["off_step_ms"] - values["on_step_ms"]
                assert values["cost_ms"] == pytest.approx(cost)
            equal[kind, name] = all(values["bits_equal"] for values in rows.values())
    assert equal == {
        ("switches", chosen[0]): False,
        ("switches", chosen[1]): True,
        ("cumulative", chosen[0]): False,
        ("cumulative", chosen[1]): False,
    }
    assert record["verdict"] == {
        "exact": True,
        "compared_tokens": 3 * 2 * (1 + 8),  # three pairs of two steps, on again
        "first_divergence": None,
    }


def test_what_can_be_turned_off_follows_from_what_a_step_uses(lab):
    with torch.inference_mode():
        found = lab.switches()
    tiles = {"int4_matmul", "int4_gate_up", "gated_delta_step", "attention_decode"}
    assert tiles <= set(found)
    assert {f"separate_{name}" for name in ablation.FUSED} <= set(found)
    assert not {"overlap", "jit", "table4_matmul", "sample"} & set(found)
    assert all(not switch.exact for switch in found.values())


def test_nothing_to_turn_off_and_unknown_switches_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ablation, "ceilings", lambda device: {})
    with pytest.raises(ValueError, match="unknown switch 'silu'; did you mean 'silu_mul'"):
        run(tmp_path, *SMALL, "quant=bf16", "params.switches=[silu]")
    with pytest.raises(ValueError, match="nothing can be turned off here; use kernel=auto"):
        run(tmp_path, *SMALL, "quant=bf16", "kernel=reference")


@pytest.mark.parametrize("wrong", [False, True])
def test_a_switch_that_changes_bits_it_must_not_is_found(lab, monkeypatch, wrong):
    plain = ablation.Lab.model

    def model(lab, off=()):
        made = plain(lab, off)
        if not (off and wrong):
            return made

        def step(*args):
            tokens, logits, state = made.compiled(*args)
            return tokens, logits.nextafter(torch.full_like(logits, torch.inf)), state

        return replace(made, compiled=step)

    monkeypatch.setattr(ablation.Lab, "model", model)
    switch = ablation.Switch("kernel.silu_mul=tile", {"silu_mul": "tile"}, exact=True)
    with torch.inference_mode():
        pairs = ablation.Pairs(lab)
        figures = pairs.measure("one", [switch])
    assert pairs.compared == 2 * 2 * (1 + 3)
    assert [values["bits_equal"] for values in figures.values()] == [not wrong] * 2
    where = {"switch": "one", "rows": 1, "step": 0, "tensor": "logits"}
    assert pairs.first == (where if wrong else None)


def test_a_step_that_is_not_the_same_once_it_is_on_again_is_found(lab, monkeypatch):
    with torch.inference_mode():
        pairs = ablation.Pairs(lab)
        pairs.want[3][1]["tokens"].add_(1)
        pairs.measure("one", [ablation.Switch("", {"silu_mul": "reference"})])
    where = {"switch": "one, on again", "rows": 3, "step": 1, "tensor": "tokens"}
    assert pairs.first == where


@pytest.mark.parametrize(
    "operator, variant, plain, found",
    [
        ("silu_mul", "triton", False, ""),
        ("silu_mul", "triton", True, "tile"),
        ("silu_mul", "reference", True, ""),
    ],
)
def test_the_next_best_variant(operator, variant, plain, found):
    pytest.importorskip("triton")
    assert ablation.next_best(operator, variant, HOPPER, {}, plain) == found


def test_gluon_gives_way_to_triton():
    pytest.importorskip("triton")
    for operator in ("int4_matmul", "gated_delta_step", "attention_prefill"):
        assert ablation.next_best(operator, "gluon", HOPPER, {}, False) == "triton"


def test_launches_are_told_within_a_block_alone(monkeypatch):
    monkeypatch.setattr(gpu, "_capability", lambda device: (9, 0))
    monkeypatch.delenv("TR_DEPENDENT_LAUNCH", raising=False)
    card = torch.device("cuda", 7)

    def seen(*args):
        return dependent_launch(card), fetches_ahead(card)

    ops = replace(select(), silu_mul=seen)
    assert seen() == (True, True)
    assert launched(ops, Launching(overlap=False)).silu_mul() == (False, False)
    assert launched(ops, Launching(fetch_ahead=False)).silu_mul() == (True, False)
    with pytest.raises(KeyError), launching(Launching(overlap=False)):
        raise KeyError
    assert seen() == (True, True)


def test_separate_operators_give_what_the_fused_ones_do(lab):
    apart = separated(lab.made.ops, ablation.FUSED)
    for name in ablation.FUSED:
        assert getattr(apart, name) is not getattr(lab.made.ops, name)
    model = lab.made.model
    with torch.inference_mode():
        a = lab.steps(model, lab.places[1], 2)
        b = lab.steps(Model.build(model.params, apart, model.ids), lab.places[1], 2)
    assert ablation.difference(a, b) is None


def test_the_separate_ones_are_refused_by_name():
    with pytest.raises(ValueError, match="did you mean 'int4_gate_up'"):
        load(["+exp=ablation", "kernel.separate=[gate_up]"])


def test_a_compiled_step_cannot_be_told_how_to_launch():
    def picked(*args, target=HOPPER):
        config = load(["+exp=ablation", "model=smoke", "weights=random", *args])
        return operators(config, config.model.spec(), 64, target)[0]

    pytest.importorskip("triton")
    for backend in ("inductor", "max_autotune_graph"):
        with pytest.raises(ValueError, match=f"got jit={backend}; use jit=eager or jit=cuda_graph"):
            picked("kernel.overlap=false", f"jit={backend}")
    assert picked("kernel.overlap=false").silu_mul is not picked().silu_mul
    on_cpu = picked("kernel.overlap=false", target=Target())
    assert on_cpu.silu_mul is picked(target=Target()).silu_mul
