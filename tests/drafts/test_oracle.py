"""The recorded draft: its rate, its determinism, its end."""

import pytest
import torch

from tests.decode.small import IDS, model
from tests.model.small import random_tokens
from tr.decode.generate import generate
from tr.drafts.base import Feed
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import sampling

PROMPT = random_tokens(20).clamp(max=IDS - 1).tolist()


def at(pos: int) -> Feed:
    zero, none = torch.tensor(0), torch.zeros(8, 0)
    return Feed(
        anchor=zero, pos=torch.tensor(pos), count=zero, hidden=none, taps=none, history=zero[None]
    )


def drafts(oracle: Oracle, pos: int) -> torch.Tensor:
    state = oracle.init_state(len(oracle.text))
    known = max(0, oracle.reach - pos - 1)  # as many as a step may use
    return oracle.propose(state, at(pos), sampling())[0][:known]


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("rate", [0, 1])
def test_all_or_nothing(rate, heat):
    m, s = model(), sampling(heat, seed=3)
    raw = generate(m, Raw(), PROMPT, s, 49, (), 128).tokens
    oracle = Oracle(torch.tensor(PROMPT + raw), 7, rate)
    counts = generate(m, oracle, PROMPT, s, 49, (), 128)
    assert counts.tokens == raw
    assert counts.accepted == ([7] * 6 if rate else [0] * 48)
    assert counts.kept == ([8] * 6 if rate else [1] * 48)


def test_a_corrupted_token_is_another_one():
    text = torch.randint(0, 3, (5000,), generator=torch.Generator().manual_seed(0))
    nothing = Oracle(text, 4000, 0.0)
    assert (drafts(nothing, 10) != text[11:4011]).all()
    assert int(drafts(nothing, 10).max()) <= 1


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_the_rate_is_kept_and_positions_decide(rate):
    """Whether a token is kept depends on seed and position, not on the step that drafts it."""
    text = torch.randint(5, 99, (20_001,), generator=torch.Generator().manual_seed(0))
    oracle = Oracle(text, 20_000, rate, seed=1)
    right = drafts(oracle, 0) == text[1:]
    assert abs(right.float().mean() - rate) < 0.015
    runs = (right[1:] == right[:-1]).float().mean()  # neighbours are independent
    assert abs(runs - (rate**2 + (1 - rate) ** 2)) < 0.02
    short = Oracle(text, 7, rate, seed=1)
    for pos in (0, 3, 500, 4321):
        assert torch.equal(drafts(short, pos), drafts(oracle, 0)[pos : pos + 7])
    other = drafts(Oracle(text, 20_000, rate, seed=2), 0) == text[1:]
    assert not torch.equal(right, other)


def test_nothing_is_drafted_past_the_end_of_the_recording():
    text = torch.arange(10)
    oracle = Oracle(text, 7, 1.0)
    assert drafts(oracle, 5).tolist() == [6, 7, 8, 9]
    assert drafts(oracle, 9).tolist() == []
    m = model()
    raw = generate(m, Raw(), PROMPT, sampling(), 30, (), 128).tokens
    short = Oracle(torch.tensor(PROMPT + raw[:11]), 7, 1.0)
    counts = generate(m, short, PROMPT, sampling(), 30, (), 128)
    assert counts.tokens == raw and counts.proposed[:3] == [7, 2, 0]
