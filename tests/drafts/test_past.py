"""What the host makes of a text: the match that lookup would find, and how far it carries."""

import random

import pytest
import torch

from tr.drafts.lookup import match
from tr.drafts.past import Past, Rate

SURE = ((0, 0.5),)


def past(tokens, ngram_min=2, ngram_max=6, rates=SURE, weight=2.0) -> Past:
    return Past(tokens, ngram_min, ngram_max, rates, weight, 1.0)


@pytest.mark.parametrize("ngram_min, ngram_max", [(1, 4), (2, 6), (3, 3)])
def test_its_match_is_lookup_s(ngram_min, ngram_max):
    draw = random.Random(ngram_max)
    text = draw.choices(range(3), k=60)
    known = past(text[:7], ngram_min, ngram_max)
    for n in range(8, len(text) + 1):
        known.add(text[n - 1])
        length, end = match(torch.tensor(text), torch.tensor(n - 1), ngram_max)
        if int(length) < ngram_min:
            assert (known.length, known.found(9), known.expected(9)) == (0, 0, 0.0)
        else:
            assert (known.length, known.found(99)) == (int(length), n - 1 - int(end))
    assert known.found(2) <= 2


def test_a_text_without_a_match():
    for tokens in ([], [5], [1, 2, 3]):
        assert past(tokens).length == 0


def test_rates_are_of_matches_as_long():
    """Each token is a case for the length that its match had: a right one, or a wrong one."""
    rates = ((0, 0.5), (4, 0.9))
    known = past([1, 2, 3, 4, 5, 6, 1, 2], rates=rates)
    assert known.length == 2 and known.expected(1) == 0.5
    assert known.expected(3) == pytest.approx(0.5 + 0.5**2 + 0.5**2 * 0.9)
    for right in (3, 4):
        known.add(right)
    short = (0.5 * 2 + 2) / 4  # two cases right
    assert known.length == 4 and known.expected(2) == pytest.approx(0.9 + 0.9**2)
    known.add(9)  # a match of four that was wrong
    for token in (1, 2):
        known.add(token)
    assert known.length == 2 and known.found(9) == 5
    long = (0.9 * 2 + 0) / 3
    assert known.expected(4) == pytest.approx(short + short**2 + short**2 * (long + long**2))


def test_tokens_that_come_first_must_be_right_as_well():
    known = past([1, 2, 3, 4, 5, 6, 1, 2])
    assert known.expected(2, ahead=3) == pytest.approx(0.5**4 + 0.5**5)


def test_a_rate_begins_and_forgets():
    rate = Rate(0.8, 4.0, 1.0)
    assert rate.value == 0.8
    rate.add(0, 4)
    assert rate.value == 0.4
    fading, steady = Rate(0.5, 1.0, 0.9), Rate(0.5, 1.0, 1.0)
    for one in (fading, steady):
        one.add(0, 50)
        one.add(50, 50)
    assert fading.value > 0.99 > 0.51 > steady.value
