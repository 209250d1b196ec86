"""A text as the host knows it: where its last tokens stood before, and how often that told more.

What lookup would propose costs the host a few steps through a list, so that a strategy can weigh a
copied step before the device runs one.
"""

from collections.abc import Iterable

LOOKED = 64  # earlier places that are compared, the latest ones


class Rate:
    """A share or a mean that begins as if `weight` cases had given `mean`, and forgets slowly."""

    def __init__(self, mean: float, weight: float, keep: float) -> None:
        self._sum, self._count, self._keep = mean * weight, weight, keep

    def add(self, total: float, cases: int = 1) -> None:
        faded = self._keep**cases
        self._sum = self._sum * faded + total
        self._count = self._count * faded + cases

    @property
    def value(self) -> float:
        return self._sum / self._count


class Past:
    """The text so far and the best earlier match of its suffix: the longest, then the latest.

    `rates`: pairs of a match's least length and its share of next tokens that were the text's, the
    shortest length first; `weight` and `keep` as in `Rate`.
    """

    def __init__(
        self,
        tokens: Iterable[int],
        ngram_min: int,
        ngram_max: int,
        rates: Iterable[tuple[int, float]],
        weight: float,
        keep: float,
    ) -> None:
        self._min, self._max = ngram_min, ngram_max
        self._rates = [(length, Rate(share, weight, keep)) for length, share in rates]
        self._text: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}  # where an n-gram of `ngram_min` ends
        self._before: list[int] = []  # for each place, where its n-gram ended before; -1: nowhere
        for token in tokens:
            self._push(token)
        self.length, self._end = self._match()

    def add(self, token: int) -> None:
        """One more token of the text, which the match so far foretold or did not."""
        if self.length:
            self._rate(self.length).add(self._text[self._end + 1] == token)
        self._push(token)
        self.length, self._end = self._match()

    def found(self, most: int) -> int:
        """How many tokens follow the match, `most` at most."""
        return min(most, len(self._text) - 1 - self._end) if self.length else 0

    def expected(self, most: int, ahead: int = 0) -> float:
        """How many of those tokens will be the text's: each makes the match one longer.

        `ahead`: tokens that the text will have gained by then. A match that they end is worth none.
        """
        share, total = 1.0, 0.0
        for i in range(ahead):
            share *= self._rate(self.length + i).value
        for i in range(ahead, ahead + self.found(most)):
            share *= self._rate(self.length + i).value
            total += share
        return total

    def _rate(self, length: int) -> Rate:
        return next(rate for least, rate in reversed(self._rates) if length >= least)

    def _push(self, token: int) -> None:
        self._text.append(token)
        n = len(self._text)
        gram = tuple(self._text[n - self._min :]) if n >= self._min else None
        self._before.append(self._last.get(gram, -1) if gram else -1)
        if gram:
            self._last[gram] = n - 1

    def _match(self) -> tuple[int, int]:
        text, last = self._text, len(self._text) - 1
        length, end, place = 0, -1, self._before[last] if text else -1
        for _ in range(LOOKED):
            if place < 0 or length == self._max:
                break
            n = self._min
            while n < self._max and place >= n and text[place - n] == text[last - n]:
                n += 1
            if n > length:
                length, end = n, place
            place = self._before[place]
        return length, end
