"""Intervals against known values and by how often they hold; pass@k against all subsets."""

from itertools import combinations
from random import Random

import pytest

from tr.evals.intervals import mean, pass_at, ratio, wilson


def test_wilson():
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson(3, 2)


def test_an_interval_holds_as_often_as_it_says():
    rng, held = Random(0), 0
    for _ in range(400):
        drawn = [float(rng.random() < 0.3) for _ in range(60)]
        low, high = mean(drawn) or (1, 0)
        held += low <= 0.3 <= high
    assert 0.92 <= held / 400 <= 0.98


def test_a_bootstrap_of_a_ratio_holds_too():
    rng, held = Random(1), 0
    for seed in range(30):
        under = [rng.uniform(1, 3) for _ in range(30)]
        over = [u * rng.gauss(2, 0.5) for u in under]
        low, high = ratio(over, under, seed) or (1, 0)
        held += low <= 2 <= high
    assert 0.8 <= held / 30 <= 1
    assert ratio([1], [1]) is None and mean([0.5]) is None
    assert mean([0.5, 0.25, 1.0], 7) == mean([0.5, 0.25, 1.0], 7)


def test_pass_at_k_is_the_share_of_subsets_that_pass():
    for right in range(6):
        passed = [i < right for i in range(5)]
        for k in range(1, 6):
            subsets = list(combinations(passed, k))
            assert pass_at(k, 5, right) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="expected 1 <= k <= 5"):
        pass_at(6, 5, 1)
