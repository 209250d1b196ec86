"""The gate over strategies: it covers every cell, and finds one wrong token."""

from functools import partial

import pytest

from experiments import spec_exact
from tests.experiments.runs import run
from tr.assemble import assemble
from tr.overrides import load

SMALL = ("device=cpu", "max_new_tokens=12", "params.residues=[1,127]", "params.sweep_tokens=0")
FEW = "params.strategies=[mtp,dflash2_lookup,lookup,'oracle rate=0.6']"


@pytest.fixture
def gate(tmp_path):
    return partial(run, tmp_path, "+exp=spec_exact", *SMALL)


def test_every_cell_is_exact(gate):
    code, record = gate(FEW, "params.residues=[127]")
    assert code == 0 and record["verdict"]["exact"]
    figures = record["figures"]
    assert set(figures) == {
        f"{kv}, temperature {t}" for kv in ("bf16", "fp8") for t in ("0", "0.8")
    }
    for cell in figures.values():
        assert list(cell) == ["raw", "mtp", "dflash2_lookup", "lookup", "oracle rate=0.6"]
        assert all(v["exact"] and v["tokens"] == 12 and v["steps"] <= 11 for v in cell.values())
        assert cell["raw"]["steps"] == 11 and cell["mtp"]["steps"] < 11
        assert 2 < cell["raw"]["distinct_tokens"] <= 12
    assert record["verdict"]["compared_tokens"] == 4 * 4 * 12


def test_one_wrong_token_is_found(gate, monkeypatch):
    plain = spec_exact.generate

    def wrong(model, draft, prompt, *rest):
        counts = plain(model, draft, prompt, *rest)
        if draft.name == "lookup" and len(prompt) == 255:
            counts.tokens[5] ^= 1
        return counts

    monkeypatch.setattr(spec_exact, "generate", wrong)
    few = "params.strategies=[mtp,lookup]"
    code, record = gate("params.kv=[fp8]", "params.temperatures=[0.8]", few)
    first = record["verdict"]["first_divergence"]
    assert code == 1 and first["strategy"] == "lookup" and first["prompt_tokens"] == 255
    assert first["position"] == 5 and first["cell"] == "fp8, temperature 0.8"
    cell = record["figures"]["fp8, temperature 0.8"]
    assert [name for name, v in cell.items() if not v["exact"]] == ["lookup"]


def test_an_unknown_strategy_is_named(gate):
    with pytest.raises(ValueError, match="'lokup'.*did you mean 'lookup'"):
        gate("params.strategies=[lokup]")


def test_every_strategy_and_three_rates_of_the_oracle_are_the_default():
    names = spec_exact.EVERY
    assert {"mtp", "dflash2", "lookup", "dflash2_lookup", "chain", "auto"} <= set(names)
    assert [n for n in names if n.startswith("oracle")] == [
        "oracle rate=0.3",
        "oracle rate=0.6",
        "oracle rate=0.9",
    ]
    assert "raw" not in names and len(spec_exact.Options().sweep) >= 2


def test_the_sweep_takes_every_residue_once(gate, monkeypatch):
    monkeypatch.setattr(spec_exact, "BLOCK", 4)
    few = ("params.kv=[bf16]", "params.temperatures=[0]", "params.residues=[3]")
    some = ("params.strategies=[lookup]", "params.sweep=[mtp,lookup]", "params.sweep_tokens=3")
    code, record = gate(*few, *some)
    assert code == 0
    swept = record["figures"]["every residue, bf16, temperature 0"]
    assert list(swept) == ["raw", "mtp", "lookup"] and swept["mtp"]["tokens"] == 4 * 3
    assert record["verdict"]["compared_tokens"] == 12 + 2 * 12


def test_a_random_model_is_judged_on_random_ids_but_by_auto(gate, monkeypatch):
    oracles = ("oracle rate=0.3", "oracle rate=0.9")
    monkeypatch.setattr(spec_exact, "EVERY", ("auto", *oracles))
    few = ("draft=raw", "params.kv=[bf16]", "params.temperatures=[0]")
    code, record = gate("model=smoke", "weights=random", *few)
    assert code == 0 and record["verdict"]["compared_tokens"] == 2 * 24
    cell = record["figures"]["bf16, temperature 0"]
    assert list(cell) == ["raw", *oracles]
    assert cell["oracle rate=0.9"]["steps"] < cell["oracle rate=0.3"]["steps"]
    assert sum("draft=auto was left out" in line for line in record["warnings"]) == 1


def test_auto_that_was_asked_for_is_not_left_out(gate):
    with pytest.raises(ValueError, match="weights=random has no tokenizer"):
        gate("model=smoke", "weights=random", "draft=raw", "params.strategies=[auto]")


def test_prompts_have_the_lengths_asked_for():
    made = assemble(load(["run=x", "device=cpu", "model=smoke", "weights=random", "draft=raw"]))
    config = load(["run=x", "seed=3"])
    residues = [*range(128)]
    prompts = spec_exact.cuts(config, made, residues)
    assert [len(p) - 128 for p in prompts] == residues
    assert (
        prompts
        == spec_exact.cuts(config, made, residues)
        != spec_exact.cuts(load(["run=x", "seed=4"]), made, residues)
    )
    assert len({tuple(p[:8]) for p in prompts}) > 100
