"""The ids that answers were made of, found again by what a client tells of them in its next turn.

Written anew from their text, answers get other ids: text is cut into other tokens, white space is
trimmed, thoughts are left out. Then nothing that was computed behind them is of use. An answer is
known by the ids before its turn and by its form: its text without white space around it, and its
calls.
"""

import json
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tr.serve.events import CallClosed, CallOpened, Event, Reasoning, Text


class Prefix:
    """A digest of ids that grow; the same for the same ids, however they came."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._hash = blake2b(digest_size=16)
        self.add(array("i", ids))

    def add(self, ids: array) -> None:
        self._hash.update(ids.tobytes())

    def digest(self) -> bytes:
        return self._hash.digest()


@dataclass(frozen=True)
class Form:
    """What clients give back of an answer. `calls`: names and arguments."""

    text: str
    reasoning: str
    calls: Sequence[tuple[str, Any]]

    def key(self, prefix: bytes) -> bytes:
        """The reasoning, which many clients leave out, is no part of it."""
        calls = [[name, _plain(arguments)] for name, arguments in self.calls]
        form = json.dumps([self.text.strip(), calls], sort_keys=True)
        return blake2b(prefix + form.encode(), digest_size=16).digest()


def form_of(events: Iterable[Event]) -> Form:
    text, reasoning, names, arguments = "", "", [], []
    for event in events:
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, Reasoning):
            reasoning += event.text
        elif isinstance(event, CallOpened):
            names.append(event.name)
        elif isinstance(event, CallClosed):
            arguments.append(json.loads(event.arguments))
    return Form(text, reasoning, list(zip(names, arguments, strict=True)))


def _plain(value: Any) -> Any:
    """5.0 as 5: a client's JSON may know one kind of number only."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


class Ledger:
    """`limit` ids are held, the turns not asked for the longest go first."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._known: OrderedDict[bytes, dict[str, array[int]]] = OrderedDict()

    def add(self, prefix: bytes, form: Form, ids: Sequence[int]) -> None:
        """`ids`: of the answer's turn, up to its end token."""
        turns = self._known.setdefault(form.key(prefix), {})
        self._size -= len(turns.pop(form.reasoning.strip(), ()))
        turns[form.reasoning.strip()] = array("i", ids)
        self._size += len(ids)
        self._known.move_to_end(form.key(prefix))
        while self._size > self._limit:
            self._size -= sum(map(len, self._known.popitem(last=False)[1].values()))

    def find(self, prefix: bytes, form: Form, reinsert: bool) -> array | None:
        """`reinsert`: a form without reasoning stands for the newest of any reasoning."""
        key = form.key(prefix)
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        turns, reasoning = self._known[key], form.reasoning.strip()
        if not reasoning and reinsert:
            return next(reversed(turns.values()))
        return turns.get(reasoning)
