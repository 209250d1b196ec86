"""The experiment covers every cell, and finds one wrong token."""

from functools import partial

import pytest

from experiments import resume_exact
from kernels.define import MAX_ROWS
from tests.experiments.runs import run
from tr.decode.step import SHORT

DRAFTS = ["lookup", "dflash2"]
FEW = ("device=cpu", "params.residues=[127,0]")


@pytest.fixture
def resumed(tmp_path):
    return partial(run, tmp_path, "+exp=resume_exact", *FEW)


def test_every_cell_is_exact(resumed):
    code, record = resumed("params.strategies=[lookup,dflash2]", "params.kv=[fp8]")
    assert code == 0 and record["verdict"]["exact"]
    assert record["verdict"]["compared_tokens"] == 2 * (2 * 4 + 2 * 2 + 2 * 2)
    assert list(record["figures"]) == ["fp8"] and list(record["figures"]["fp8"]) == DRAFTS
    for figures in record["figures"]["fp8"].values():
        assert figures == {
            "residues": 2,
            "differences": 0,
            "other_steps": 0,
            "reused_tokens": 8 + 8,  # an opening of 5 and an answer of 4 tokens but for the last
            "computed_tokens": 119 + 120,
            "branch_differences": 0,
            "strict_differences": 0,
            "strict_reused_tokens": 128 + 64,
            "strict_computed_tokens": 63 + 0,
        }


def test_processes_share_out_cells_and_make_one_record(tmp_path):
    few = "params.strategies=[lookup,mtp]", "params.kv=[bf16]", "params.residues=[64]"
    code, record = run(tmp_path, "+exp=resume_exact", "device=cpu", *few, "params.processes=2")
    assert code == 0 and record["verdict"]["exact"]
    assert record["verdict"]["compared_tokens"] == 2 * (4 + 2 + 2)
    assert list(record["figures"]["bf16"]) == ["lookup", "mtp"]
    assert all(cell["residues"] == 1 for cell in record["figures"]["bf16"].values())
    with pytest.raises(ValueError, match="params.processes: expected at least 1, got 0"):
        run(tmp_path / "none", "+exp=resume_exact", "params.processes=0")


def test_wrong_tokens_are_found(resumed, monkeypatch):
    """One in a branch, one in a turn, one in strict mode; and a turn with steps of its own."""
    plain, calls = resume_exact.taken_up, []

    def wrong(held, ids, *rest):
        counts, reused, computed = plain(held, ids, *rest)
        calls.append(len(ids))  # the openings', turn and branch of each, strict mode's
        if len(calls) == 3:
            counts.kept.append(1)
        if len(calls) in (4, 5, 7):
            counts.tokens[1] ^= 1
        return counts, reused, computed

    monkeypatch.setattr(resume_exact, "taken_up", wrong)
    code, record = resumed("params.strategies=[lookup]", "params.kv=[bf16]")
    first = record["verdict"]["first_divergence"]
    assert code == 1 and first["mode"] == "branch" and first["position"] == 1
    assert first["cell"] == "bf16, lookup" and first["prompt_tokens"] == calls[3]
    figures = record["figures"]["bf16"]["lookup"]
    for name in ("differences", "branch_differences", "strict_differences", "other_steps"):
        assert figures[name] == 1, name


def test_a_conversation_s_prompts_have_the_residues_asked_for():
    for residues in ([0, 1, 127], [5, 5, 4], list(range(128))):
        made = list(resume_exact.lengths(residues, 6))
        assert [n % 128 for n in made] == residues
        assert made[0] > 0 and all(a + 6 < b for a, b in zip(made, made[1:], strict=False))
    every = [resume_exact.STRIDE * i % 128 for i in range(128)]
    made = list(resume_exact.lengths(every, 4))
    new = {b - a - 4 for a, b in zip(made, made[1:], strict=False)}  # behind an answer
    assert MAX_ROWS < min(new) and max(new) < SHORT, "two rounds of rows or more"
    assert sorted(every) == list(range(128))
    assert list(resume_exact.lengths(every, 6))[-1] < 128 * (resume_exact.STRIDE + 1)
