"""Answers for the reader: text with marker tokens as single characters, cut into any tokens."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.events import (
    CallArguments,
    CallClosed,
    CallCut,
    CallOpened,
    Event,
    Reasoning,
    Text,
    merged,
)
from tr.serve.job import Tool
from tr.serve.reader import Reader
from tr.serve.tags import CALL, END_CALL, END_THINK, MARKERS, THINK

WORDS = {marker: word for word, marker in MARKERS.items()}
ONE_MARKER = re.compile(f"([{THINK}{END_THINK}{CALL}{END_CALL}])")

TOOLS = [
    Tool(
        "write",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "content": {"type": "string"},
                "lines": {"type": "integer"},
                "options": {"type": "object"},
            },
        },
    ),
    Tool("now", {"type": "object", "properties": {}}),
    Tool("bash", {"type": "object", "properties": {"command": {"type": "string"}}}),
]


def ids_of(tokenizer: Tokenizer, marked: str) -> list[int]:
    """With the tokenizer's own tokens; only marker characters become marker tokens."""
    ids = []
    for piece in ONE_MARKER.split(marked):
        word = WORDS.get(piece)
        ids += [tokenizer.control[word]] if word else tokenizer.encode(piece)
    return ids


def cut_up(tokenizer: Tokenizer, marked: str, sizes: Sequence[int]) -> tuple[Tokenizer, list[int]]:
    """The same text as tokens of so many bytes in turn, and the tokenizer that knows them."""
    pieces: list[bytes | None] = [word.encode() for word in MARKERS]
    ids = []
    for piece in ONE_MARKER.split(marked):
        if piece in WORDS:
            ids.append(list(WORDS).index(piece))
            continue
        rest = piece.encode()
        while rest:
            size = sizes[len(pieces) % len(sizes)]
            ids.append(len(pieces))
            pieces.append(rest[:size])
            rest = rest[size:]
    control = {word: n for n, word in enumerate(MARKERS)}
    return replace(tokenizer, pieces=pieces, control=control, special=frozenset()), ids


def reader(tokenizer: Tokenizer, **options) -> Reader:
    numbers = count()
    return Reader(tokenizer, call_id=lambda: f"call_{next(numbers)}", **options)


def events(
    tokenizer: Tokenizer, ids: Iterable[int], cut: bool = False, step: int = 1, **options
) -> tuple[list[Event], str]:
    """All events joined, taken every `step` ids, and the stop string."""
    given, found = reader(tokenizer, **options), []
    for n, token in enumerate(ids, 1):
        ended = given.push(token)
        if n % step == 0:
            found += given.take()
        if ended:
            break
    return merged([*found, *given.finish(cut)]), given.stop


def told(found: Sequence[Event]) -> list[tuple]:
    """Events in short: ("think", text), ("text", text), (name, arguments), ("cut", raw)."""
    short: list[tuple] = []
    names: dict[int, str] = {}
    for event in found:
        if isinstance(event, Reasoning):
            short.append(("think", event.text))
        elif isinstance(event, Text):
            short.append(("text", event.text))
        elif isinstance(event, CallOpened):
            assert event.index == len(names)
            names[event.index] = event.name
        elif isinstance(event, CallClosed):
            short.append((names[event.index], event.arguments))
        elif isinstance(event, CallCut):
            short.append(("cut", event.raw))
    return short


def arguments(found: Sequence[Event], index: int) -> str:
    return "".join(e.json for e in found if isinstance(e, CallArguments) and e.index == index)
