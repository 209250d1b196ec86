"""Acceptance over context lengths: places, what counts, and one small run."""

import pytest

from experiments import accept_curve
from experiments.measure import Tally
from tests.experiments.runs import record_of
from tr.decode.stream import Counts
from tr.overrides import load

SMALL = ("device=cpu", "max_new_tokens=8", "params.positions=2", "params.text=chinese")


def test_places_are_spread_over_the_text():
    assert accept_curve.spread(100, 6) == [0, 20, 40, 60, 80, 100]
    assert accept_curve.spread(0, 3) == [0, 0, 0] and accept_curve.spread(9, 1) == [0]


def counted(kept: list[int]) -> Tally:
    tally = Tally()
    accepted = [k - 1 for k in kept]
    tally.add(Counts(kept=kept, accepted=accepted, proposed=[3] * len(kept)), 1 + sum(kept))
    return tally


def test_a_length_s_values():
    values = accept_curve.values([counted([4, 2]), counted([1]), Tally()])
    assert values["tokens_per_step_by_place"] == [3.0, 1.0, None]
    assert values["tokens_per_step"] == 7 / 3 and values["counted_tokens"] == 7
    assert (values["least_tokens_per_step"], values["most_tokens_per_step"]) == (1.0, 3.0)
    assert values["accepted_by_position"] == [2 / 3, 1 / 3, 1 / 3]
    assert accept_curve.values([Tally()])["tokens_per_step"] is None


def test_a_small_run(tmp_path):
    record = record_of(tmp_path, "+exp=accept_curve", "params.lengths=[32,70]", *SMALL)
    assert record["verdict"]["exact"] and record["verdict"]["compared_tokens"] == 2 * 2 * 2 * 8
    figures = record["figures"]
    assert figures["text_tokens"] > 1_000 and list(figures["strategies"]) == ["mtp", "dflash2"]
    for name, drafts in (("mtp", 3), ("dflash2", 7)):
        assert list(figures["strategies"][name]) == ["32", "70"]
        for values in figures["strategies"][name].values():
            assert len(values["tokens_per_step_by_place"]) == 2
            assert len(values["accepted_by_position"]) == drafts
            assert 1 <= values["least_tokens_per_step"] <= values["tokens_per_step"]
    assert (tmp_path / "out" / "tokens_per_step.png").exists()


@pytest.mark.parametrize(
    "args, said",
    [
        (["params.text=prse"], "params.text.*did you mean 'prose'"),
        (["params.text=prompts", "prompts=chinese", "params.lengths=[7000]"], "exceeds the text's"),
        (["params.lengths=[]"], "must be positive"),
        (["params.positions=0"], "must be positive"),
    ],
)
def test_what_is_refused(args, said):
    with pytest.raises(ValueError, match=said):
        accept_curve.run(load(["+exp=accept_curve", "device=cpu", *args]))
