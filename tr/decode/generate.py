"""The host's loop: a prompt in, tokens out step by step, stops exact inside a block."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tr.decode.step import Model, State, init_state, keep, not_finite, prefill
from tr.drafts.base import Draft
from tr.model.sampling import Sampling


@dataclass
class Counts:
    """What a generation did. A step emits its accepted drafts and one token of the target's own.

    `kept` [steps]: tokens each step put into the text, the last one's cut included. `proposed` and
    `accepted` [steps]: drafts, before any cut. `seconds` covers the steps alone, without prefill.
    """

    tokens: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    stop: str = ""  # eos, length (as many as asked for), or window (the state is full)

    @property
    def steps(self) -> int:
        return len(self.kept)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that steps put into the text over steps; the prefill's own token is no step's."""
        return sum(self.kept) / len(self.kept) if self.kept else 0.0


@dataclass
class Stream:
    """A conversation on the host: its state, and the tokens that decoding has added to it."""

    model: Model
    draft: Draft
    sampling: Sampling
    state: State

    @property
    def pos(self) -> int:
        """Position of the anchor, the last token of the text."""
        return int(self.state.feed.pos)

    @property
    def capacity(self) -> int:
        return len(self.state.feed.history) - 1


def open_stream(
    model: Model, draft: Draft, prompt: Sequence[int], sampling: Sampling, capacity: int
) -> Stream:
    """Read a prompt; the first token of the answer is drawn and stands as the anchor."""
    device = model.params.norm.device
    with torch.inference_mode():
        state = init_state(model, draft, capacity)
        ids = torch.tensor(list(prompt), dtype=torch.int64, device=device)
        return Stream(model, draft, sampling, prefill(model, draft, state, ids, sampling))


def advance(
    stream: Stream, counts: Counts, max_tokens: int, eos: Sequence[int] = ()
) -> Iterator[list[int]]:
    """Add up to `max_tokens` tokens, yielding each step's; stops at an end token, which is kept.

    After any stop the stream stands exactly at the last yielded token: the rows behind it are
    committed, those past it are gone, and a further `advance` goes on as if never stopped.
    """
    made, pos = 0, stream.pos
    while not counts.stop:
        room = stream.capacity - pos
        if made >= max_tokens or room < 1:
            counts.stop = "length" if made >= max_tokens else "window"
            return
        began = time.perf_counter()
        rows = max(1, min(stream.draft.rows, stream.draft.reach - pos, room))
        with torch.inference_mode():
            if rows > 1 and stream.state.feed.pos.is_cpu:
                rows = min(rows, stream.draft.found(stream.state.feed) + 1)
            result, _, stream.state = stream.model.step(
                stream.draft, stream.state, stream.sampling, rows
            )
            n, *tokens = result.tolist()  # the step's only wait for the device
            if not n:
                raise not_finite(pos + 1)
            ends = [i for i, token in enumerate(tokens[:n]) if token in eos]
            cut = min(ends[0] + 1 if ends else n, max_tokens - made)
            if cut < n:
                stream.state = keep(stream.state, result.new_tensor(cut))
        tokens = tokens[:cut]
        pos += cut
        counts.seconds += time.perf_counter() - began
        counts.kept.append(len(tokens))
        counts.proposed.append(rows - 1)
        counts.accepted.append(n - 1)
        counts.tokens += tokens
        made += len(tokens)
        if tokens[-1] in eos:
            counts.stop = "eos"
        yield tokens


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
) -> Iterator[list[int]]:
    """`generate` as a stream: the prefill's token first, then each step's; fills `counts`."""
    began = time.perf_counter()
    stream = open_stream(model, draft, prompt, sampling, capacity)
    first = int(stream.state.feed.anchor)
    counts.prefill_seconds = time.perf_counter() - began
    counts.tokens.append(first)
    if first in eos:
        counts.stop = "eos"
    yield [first]
    yield from advance(stream, counts, max_tokens - 1, eos)
