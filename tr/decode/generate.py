"""A whole answer from a prompt: what reads it, what writes it, and what ends it."""

import time
from collections.abc import Callable, Iterator, Sequence

from tr.decode.step import Model
from tr.decode.stream import Counts, Stream, advance, open_stream
from tr.decode.words import Words
from tr.drafts.base import Draft
from tr.model.sampling import Sampling


def generate(
    model: Model,
    draft: Draft,
    prompt: Sequence[int],
    sampling: Sampling,
    max_tokens: int,
    eos: Sequence[int] = (),
    capacity: int = 8192,
) -> Counts:
    """A whole answer of at most `max_tokens` tokens (at least 1), from a cold start."""
    counts = Counts()
    for _ in answer(model, draft, prompt, sampling, max_tokens, eos, capacity, counts):
        pass
    return counts


def answer(
    model: Model,
    draft: Draft,
    prompt: Sequence[int],
    sampling: Sampling,
    max_tokens: int,
    eos: Sequence[int],
    capacity: int,
    counts: Counts,
    words: Words | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[list[int]]:
    """`generate` as a stream: the prefill's token first, then each step's; fills `counts`.

    `words` and `cancelled` end it as `advance` says.
    """
    began = time.perf_counter()
    stream = open_stream(model, draft, prompt, sampling, capacity)
    counts.prefill_seconds = time.perf_counter() - began
    yield from speak(stream, counts, max_tokens, eos, words, cancelled)


def speak(
    stream: Stream,
    counts: Counts,
    max_tokens: int,
    eos: Sequence[int] = (),
    words: Words | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[list[int]]:
    """The answer to a prompt that was read: its first token, then each step's; fills `counts`."""
    first = int(stream.state.feed.anchor)
    counts.tokens.append(first)
    if words is not None and words.push(first):
        counts.stop = "string"
    elif first in eos:
        counts.stop = "eos"
    yield [first]
    yield from advance(stream, counts, max_tokens - 1, eos, words, cancelled)
