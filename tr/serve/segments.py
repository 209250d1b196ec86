"""Text between two control tokens to ids, remembered: a longer conversation costs its new turns.

Control tokens are cut out of a text before anything else is done with it, so the ids between two of
them depend on nothing around; no other border is as sure.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence


class Segments:
    """`limit` characters are remembered, those not asked for the longest go first."""

    def __init__(self, encode: Callable[[str], Sequence[int]], limit: int) -> None:
        self._encode, self._limit = encode, limit
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._size = 0
        self.encoded = 0  # characters so far

    def ids(self, text: str) -> array:
        if text in self._known:
            self._known.move_to_end(text)
            return self._known[text]
        found = array("i", self._encode(text))
        self.encoded += len(text)
        self._known[text] = found
        self._size += len(text)
        while self._size > self._limit:
            self._size -= len(self._known.popitem(last=False)[0])
        return found
