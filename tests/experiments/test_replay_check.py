"""The check of bits: it passes where it must, and finds a step that depends on what it must not."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.experiments.runs import run
from tr.decode import step
from tr.nn.formats.operand import Operand

SMALL = ("model=smoke", "weights=random", "device=cpu", "params.steps=6", "params.rows=[1,2,5]")


@pytest.fixture
def check(tmp_path):
    return partial(run, tmp_path, "+exp=replay_check", *SMALL)


@pytest.fixture
def forward(monkeypatch):
    """Let each call of the target's step change its rows by `change(call, rows)`."""

    def install(change) -> None:
        plain, calls = step.text.step, []

        def changed(*args):
            rows, state = plain(*args)
            calls.append(rows)
            return change(len(calls), rows), state

        monkeypatch.setattr(step.text, "step", changed)

    return install


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_eager_equals_itself_at_every_row_count(check, sampling):
    code, record = check(f"sampling={sampling}")
    assert code == 0
    assert record["verdict"] == {"exact": True, "compared_tokens": 14, "first_divergence": None}
    figures = record["figures"]
    assert figures["backend"] == "eager" and figures["steps_exact"]
    assert figures["rows"] == {str(n): {"exact": True} for n in (1, 2, 5)}


def test_a_step_that_differs_from_call_to_call_is_found(check, forward):
    """Call 8 is the fourth step by the backend: one unit in the last place of a logit."""

    def change(call, rows):
        if call == 8:
            rows.logits[0, 7] = torch.nextafter(
                rows.logits[0, 7], torch.tensor(torch.inf).bfloat16()
            )
        return rows

    forward(change)
    code, record = check()
    assert code == 1 and not record["figures"]["steps_exact"]
    assert record["verdict"]["first_divergence"] == {
        "check": "replay",
        "step": 3,
        "tensor": "logits",
    }


def test_a_state_that_differs_is_found_at_the_end(check, forward):
    forward(lambda call, rows: replace(rows, hidden=Operand(x=rows.hidden.x + (call == 12))))
    code, record = check()
    assert code == 1
    assert record["verdict"]["first_divergence"] == {
        "check": "replay",
        "step": 5,
        "tensor": "feed.hidden",
    }


def test_rows_that_depend_on_their_number_are_found(check, forward):
    forward(
        lambda call, rows: replace(rows, logits=rows.logits * (2 if len(rows.logits) == 5 else 1))
    )
    code, record = check()
    assert code == 1 and record["figures"]["steps_exact"]
    assert [x["exact"] for x in record["figures"]["rows"].values()] == [True, True, False]
    first = record["verdict"]["first_divergence"]
    assert (first["check"], first["rows"], first["row"]) == ("rows", 5, 0) and first["logits"] > 600
