"""Speculation writes what raw decoding writes, token for token: the embedded model, every draft."""

from dataclasses import replace

import pytest
import torch

from tests.decode.embedded import (
    CAPACITY,
    CASES,
    DRAFTS,
    REFERENCE_TOKENS,
    TOKENS,
    draft,
    model,
    raw,
)
from tests.model.small import copy
from tr.decode.generate import generate
from tr.decode.step import prefill
from tr.decode.stream import Counts, advance, open_stream
from tr.drafts.raw import Raw
from tr.tree import unchecked

GREEDY, ESSAY, COPY = CASES[0], CASES[1], CASES[7]


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_speculative_equals_raw(case, name):
    counts = generate(
        model(), draft(name, case), case.prompt, case.sampling, TOKENS, capacity=CAPACITY
    )
    assert counts.tokens == raw(case)
    assert counts.stop == "length" and 1 + sum(counts.kept) == TOKENS
    assert sum(counts.accepted) > 0 or name == "lookup"


@pytest.mark.parametrize("name", ["mtp", "dflash2", "scripted"])
@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=str)
def test_reference_operators(case, name):
    counts = generate(
        model("reference"),
        draft(name, case, "reference"),
        case.prompt,
        case.sampling,
        REFERENCE_TOKENS,
        capacity=CAPACITY,
    )
    assert counts.tokens == raw(case, "reference")


@pytest.mark.parametrize("case", [COPY, ESSAY], ids=str)
def test_a_perfect_draft_is_accepted_whole(case):
    counts = generate(
        model(), draft("perfect", case), case.prompt, case.sampling, TOKENS, capacity=CAPACITY
    )
    assert counts.tokens == raw(case)
    assert counts.kept == [8] * 25 and counts.accepted == counts.proposed == [7] * 25


@pytest.mark.parametrize(
    "case, name",
    [(COPY, name) for name in (*DRAFTS, "perfect")]
    + [(ESSAY, name) for name in ("dflash2", "scripted", "perfect")],
    ids=str,
)
def test_cuts_at_every_place_of_a_block(case, name):
    """Stop after each `part` tokens and go on: with 1 .. 8, a perfect block is cut everywhere."""
    stream = open_stream(model(), draft(name, case), case.prompt, case.sampling, CAPACITY)
    start = stream.state
    for part in range(1, 9):
        stream.state = copy(start)
        made = [int(start.feed.anchor)]
        for _ in range(max(2, 16 // part)):
            counts = Counts()
            for tokens in advance(stream, counts, part):
                made += tokens
            assert counts.stop == "length" and sum(counts.kept) == part
            assert stream.pos == len(case.prompt) + len(made) - 1
            if name == "perfect":
                assert counts.accepted == [7] and counts.kept == [part]
        for tokens in advance(stream, Counts(), 12):  # whole blocks after the last cut
            made += tokens
        assert made == raw(case)[: len(made)], part


@pytest.mark.parametrize(
    "case, name",
    [(GREEDY, name) for name in ("raw", *DRAFTS)] + [(ESSAY, "dflash2"), (ESSAY, "scripted")],
    ids=str,
)
def test_an_end_token_inside_a_block(case, name):
    """The text ends with the first end token; going on from there is as if it had not stopped."""
    strategy = draft(name, case)
    answer, start = raw(case), len(case.prompt)
    opened = open_stream(model(), strategy, case.prompt, case.sampling, CAPACITY)
    for p in range(13):
        end = answer[p]
        first = answer.index(end)
        expected = answer[: first + 1]
        if p in (0, 5):  # in one go as well, the prefill's token included
            counts = generate(
                model(), strategy, case.prompt, case.sampling, TOKENS, (end,), CAPACITY
            )
            assert counts.tokens == expected and counts.stop == "eos"
        if first == 0:
            continue
        stream = replace(opened, state=copy(opened.state))
        counts = Counts()
        made = [t for tokens in advance(stream, counts, TOKENS, (end,)) for t in tokens]
        assert [answer[0], *made] == expected and counts.tokens == made
        assert counts.stop == "eos" and sum(counts.kept) == len(made) == first
        feed = stream.state.feed
        assert int(feed.anchor) == end and stream.pos == start + first
        assert feed.history[start : stream.pos + 1].tolist() == expected
        after = [t for tokens in advance(stream, Counts(), 8) for t in tokens]
        assert expected + after == answer[: first + 9]


@pytest.mark.parametrize("name", DRAFTS)
def test_a_second_turn_after_a_cut(name):
    """More prompt on a state that stopped inside a block: both ways read and write the same."""

    def talk(strategy):
        case = ESSAY
        stream = open_stream(model(), strategy, case.prompt, case.sampling, CAPACITY)
        made = [t for tokens in advance(stream, Counts(), 5) for t in tokens]
        turn = torch.tensor([made[-1], *CASES[4].prompt])  # the anchor is text, not yet read
        with torch.inference_mode():
            stream.state = prefill(model(), strategy, stream.state, turn, case.sampling)
        made.append(int(stream.state.feed.anchor))
        return made + [t for tokens in advance(stream, Counts(), 24) for t in tokens]

    assert talk(draft(name, ESSAY)) == talk(Raw())
