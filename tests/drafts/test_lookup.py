"""Prompt lookup: the longest match, then the latest; a period is found; nothing is nothing."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.decode.small import model
from tr.decode.generate import generate
from tr.drafts.lookup import Lookup, find
from tr.drafts.raw import Raw
from tr.model.sampling import sampling


def after(text: list[int], low: int = 2, high: int = 4) -> list[int]:
    """What is found; the room past the text's end holds its tokens again, which must not count."""
    if not text:
        return []
    room, last = torch.tensor([*text, *text, 0]), torch.tensor(len(text) - 1)
    found = find(room, last, low, high, len(text)).tolist()
    tokens = [t for t in found if t >= 0]
    assert found == tokens + [-1] * (len(text) - len(tokens))
    return tokens


def test_the_longest_match_wins_over_a_later_one():
    assert after([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]) == [7, 9, 2, 3, 8, 1, 2, 3]


def test_the_latest_of_equal_matches_wins():
    assert after([1, 2, 7, 1, 2, 8, 1, 2]) == [8, 1, 2]


def test_a_match_longer_than_the_cap_does_not_beat_a_later_one():
    text = [1, 2, 3, 4, 7, 9, 3, 4, 8, 1, 2, 3, 4]
    assert after(text, high=4) == [7, 9, 3, 4, 8, 1, 2, 3, 4]
    assert after(text, high=2) == [8, 1, 2, 3, 4]


def test_a_period_is_found_at_its_own_distance():
    assert after([9, 5, 6, 5, 6, 5, 6]) == [5, 6]
    assert after([5, 5, 5, 5]) == [5]


def test_nothing_is_found():
    for text in ([], [1], [1, 2], [1, 2, 3, 4], [2, 7, 1, 2]):
        assert after(text) == []
    assert after([2, 7, 1, 2], low=1) == [7, 1, 2]


@given(
    text=st.lists(st.integers(0, 2), max_size=30),
    low=st.integers(1, 4),
    extra=st.integers(0, 3),
)
def test_by_brute_force(text, low, extra):
    """For every earlier end, the length of the common suffix, at most `high`."""
    high, best = low + extra, (0, -1)
    for end in range(len(text) - 1):
        length = 0
        while length < min(high, end + 1) and text[end - length] == text[-1 - length]:
            length += 1
        best = max(best, (length, end))
    want = text[best[1] + 1 :] if best[0] >= low else []
    assert after(text, low, high) == want


def test_a_text_as_long_as_a_window():
    """Lengths and positions are compared together, and 16 times 100,000 is no small number."""
    text = torch.arange(100_000)
    text[-16:] = text[50_000:50_016]
    last = torch.tensor(len(text) - 1)
    assert find(text, last, 2, 16, 3).tolist() == [50_016, 50_017, 50_018]
    assert find(text, last - 1, 2, 16, 3).tolist() == [50_015, 50_016, 50_017]
    assert find(text, torch.tensor(99_000), 2, 16, 3).tolist() == [-1, -1, -1]


def test_tokens_below_zero_match_nothing():
    text = torch.tensor([5, -2, 7, 8, 5, -2, 0])
    assert find(text, torch.tensor(5), 1, 4, 2).tolist() == [-1, -1]
    assert find(text, torch.tensor(4), 1, 4, 2).tolist() == [-2, 7]


def test_a_loop_on_a_cpu_verifies_no_more_than_was_found():
    prompt = list(range(3, 40))
    counts = generate(model(), Lookup(5, 1, 4), prompt, sampling(), 12, (), 128)
    text, anchor = prompt + counts.tokens, len(prompt)
    for proposed, kept in zip(counts.proposed, counts.kept, strict=True):
        assert proposed == len(after(text[: anchor + 1], 1)[:5])
        anchor += kept
    assert {0, 5} < set(counts.proposed)


def test_at_most_as_many_as_asked_for():
    """And a text that repeats itself is drafted from its own output, not the prompt alone."""
    m, prompt = model(), [3, 4, 5, 6] * 6
    strategy = Lookup(5, 2, 4)
    counts = generate(m, strategy, prompt, sampling(), 40, (), 128)
    assert counts.proposed[0] <= 5 and max(counts.proposed) <= 5
    assert counts.tokens == generate(m, Raw(), prompt, sampling(), 40, (), 128).tokens
