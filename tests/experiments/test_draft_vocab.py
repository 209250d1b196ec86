"""The counted list: its order, its coverage, and a draft that takes it."""

from collections import Counter

import pytest

from experiments import draft_vocab
from tests.experiments.runs import record_of
from tr.assemble import assemble
from tr.drafts.head import read_listing
from tr.drafts.mtp import Mtp
from tr.overrides import load

SMALL = ("device=cpu", "max_new_tokens=16", "prompts=math", "params.prompts=4")


def test_the_most_frequent_come_first_and_lower_ids_among_equals():
    assert draft_vocab.ranked(Counter([5, 3, 3, 9, 1, 9, 9])) == [9, 3, 1, 5]


def test_coverage_counts_tokens():
    test = Counter([1, 1, 1, 2])
    assert draft_vocab.coverage(test, {1, 7}) == 0.75 and draft_vocab.coverage(test, {9}) == 0
    assert draft_vocab.coverage(Counter(), {1}) is None
    assert draft_vocab.halves(640) == [20, 40, 80, 160, 320, 640]


def test_a_run_writes_a_list_that_a_draft_takes(tmp_path):
    args = ("params.temperatures=[0,0.8]", "params.sizes=[32,600]", *SMALL)
    record = record_of(tmp_path, "+exp=draft_vocab", *args)
    figures = record["figures"]
    assert figures["vocabulary_tokens"] == 545 and figures["held_out_tokens"] > 8
    assert list(figures["coverage"]) == ["32", "545"]
    few, every = figures["coverage"].values()
    assert few["counted_coverage"] <= every["counted_coverage"] <= 1
    assert every["first_coverage"] == 1 > few["first_coverage"]
    path = tmp_path / "out" / draft_vocab.FILE
    ids = read_listing(path, 545)
    assert len(ids) == len(set(ids)) == figures["distinct_tokens"]
    base = ("run=x", "device=cpu", "draft=mtp", "draft.head.kind=counted", "draft.head.ids=4")
    config = load([*base, f"draft.head.path={path}"])
    draft = assemble(config).draft(config)
    assert isinstance(draft, Mtp) and draft.head.ids is not None
    assert set(ids[:4]) <= set(draft.head.ids.tolist()) and draft.head.count < 64
    assert (tmp_path / "out" / "coverage.png").exists()


def test_something_is_counted_and_something_held_out(tmp_path):
    with pytest.raises(ValueError, match="params.held_out must be 2 or more"):
        record_of(tmp_path, "+exp=draft_vocab", "params.held_out=1", *SMALL)
