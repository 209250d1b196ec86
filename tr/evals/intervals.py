"""95 % confidence intervals of shares and means, and the unbiased estimate of pass@k."""

import math
from collections.abc import Sequence
from random import Random

Z = 1.959963984540054  # of the normal distribution, two-sided
DRAWS = 2000  # of a bootstrap


def wilson(right: int, count: int) -> tuple[float, float]:
    """Of a share of `count` independent trials (E. B. Wilson, 1927); within 0 .. 1."""
    if not 0 <= right <= count or not count:
        raise ValueError(f"wilson: expected 0 <= right <= count > 0, got {right} of {count}")
    share, z2 = right / count, Z * Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    low = 0.0 if right == 0 else middle - half
    return low, 1.0 if right == count else middle + half


def ratio(
    over: Sequence[float], under: Sequence[float], seed: int = 0
) -> tuple[float, float] | None:
    """Of sum(over) / sum(under), by a seeded bootstrap over pairs; None for fewer than two."""
    count = len(over)
    if count < 2:
        return None
    rng, found = Random(seed), []
    for _ in range(DRAWS):
        drawn = rng.choices(range(count), k=count)
        found.append(sum(over[i] for i in drawn) / sum(under[i] for i in drawn))
    found.sort()
    return found[round(0.025 * (DRAWS - 1))], found[round(0.975 * (DRAWS - 1))]


def mean(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Of the mean of independent values in 0 .. 1: Wilson's where all are 0 or 1.

    One value between gives None.
    """
    if all(v in (0, 1) for v in values):
        return wilson(round(sum(values)), len(values))
    return ratio(values, [1] * len(values), seed)


def pass_at(k: int, samples: int, right: int) -> float:
    """The chance that one of k samples out of `samples`, of which `right` passed, passes.

    1 - C(samples - right, k) / C(samples, k), as in arXiv 2107.03374.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@k: expected 1 <= k <= {samples} samples, got {k}")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)
