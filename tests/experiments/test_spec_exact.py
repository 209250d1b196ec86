"""The gate over strategies: it covers every cell, and finds one wrong token."""

from functools import partial

import pytest

from experiments import spec_exact
from tests.experiments.runs import run

SMALL = ("device=cpu", "max_new_tokens=12", "params.residues=[1,127]")


@pytest.fixture
def gate(tmp_path):
    return partial(run, tmp_path, "+exp=spec_exact", *SMALL)


def test_every_cell_is_exact(gate):
    code, record = gate()
    assert code == 0 and record["verdict"]["exact"]
    figures = record["figures"]
    assert set(figures) == {
        f"{kv}, temperature {t}" for kv in ("bf16", "fp8") for t in ("0", "0.8")
    }
    for cell in figures.values():
        assert set(cell) == set(spec_exact.STRATEGIES)
        assert all(v["exact"] and v["tokens"] == 24 and v["steps"] <= 22 for v in cell.values())
    assert record["verdict"]["compared_tokens"] == 4 * 4 * 24


def test_one_wrong_token_is_found(gate, monkeypatch):
    plain = spec_exact.generate

    def wrong(model, draft, prompt, s, *rest):
        counts = plain(model, draft, prompt, s, *rest)
        if draft.name == "lookup" and len(prompt) == 255:
            counts.tokens[5] ^= 1
        return counts

    monkeypatch.setattr(spec_exact, "generate", wrong)
    code, record = gate("params.kv=[fp8]", "params.temperatures=[0.8]")
    first = record["verdict"]["first_divergence"]
    assert code == 1 and first["strategy"] == "lookup" and first["prompt_tokens"] == 255
    assert first["position"] == 5 and first["cell"] == "fp8, temperature 0.8"
    cell = record["figures"]["fp8, temperature 0.8"]
    assert [name for name, v in cell.items() if not v["exact"]] == ["lookup"]


def test_prompts_have_the_lengths_asked_for(gate):
    with pytest.raises(ValueError, match="unknown strategy 'lokup'.*lookup"):
        gate("params.strategies=[lokup]")
