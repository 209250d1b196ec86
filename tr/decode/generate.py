"""A whole answer from a prompt: what reads it, what writes it, and what ends it."""

import time
from collections.abc import Callable, Iterator, Sequence

from tr.decode.rule import Rule
from tr.decode.step import Model
from tr.decode.stream import Counts, Stream, advance, ended, open_stream, redrawn
from tr.decode.words import Listener
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
    words: Listener | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    rule: Rule | None = None,
) -> Iterator[list[int]]:
    """`generate` as a stream: the prefill's token first, then each step's; fills `counts`.

    `words`, `cancelled` and `rule` as `advance` says.
    """
    began = time.perf_counter()
    stream = open_stream(model, draft, prompt, sampling, capacity)
    counts.prefill_seconds = time.perf_counter() - began
    yield from speak(stream, counts, max_tokens, eos, words, cancelled, rule)


def speak(
    stream: Stream,
    counts: Counts,
    max_tokens: int,
    eos: Sequence[int] = (),
    words: Listener | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    rule: Rule | None = None,
) -> Iterator[list[int]]:
    """The answer to a prompt that was read: its first token, then each step's; fills `counts`."""
    first = int(stream.state.feed.anchor)
    if rule is not None and not rule.push(first):
        first = redrawn(stream, counts, rule)
    counts.tokens.append(first)
    if stream.top is not None:
        counts.logprobs.append(stream.logprob(first))
    counts.stop = ended(first, eos, words, rule)
    yield [first]
    yield from advance(stream, counts, max_tokens - 1, eos, words, cancelled, rule)
