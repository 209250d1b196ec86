"""Conversations whose next turn costs its new tokens alone, exactly.

One text stands on the device: a turn that goes on from its end reads what is new, and nothing
moves. The others' rows and snapshots are on the host. A turn is taken up at the last snapshot
within the longest beginning that it shares with any text held, on the same storage, since captured
steps know its addresses; another text's rows that are not overwritten meanwhile are not copied
again. A turn that leaves a text before its end begins a text of its own and shares what is before.

A resumed text equals one that never paused to the bit. It differs from one that was read anew, in
rounding alone, where steps wrote rows that prefill would have: those of an answer, and those of a
prompt of which few tokens are new up to the next snapshot, which are read as steps' rows since that
takes a captured graph a fraction of the time. `strict` makes these equal as well: all of a prompt
goes through prefill, in chunks that end on multiples of the chunk's length, snapshots stand there,
and what follows the last of them is read again.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.gpu import power_of_two
from tr.decode.generate import speak
from tr.decode.held import Conversation, Held, ids_of
from tr.decode.porter import Porter
from tr.decode.rule import Rule
from tr.decode.saved import fingerprint, write
from tr.decode.saved import read as known
from tr.decode.snapshot import (
    parts,
    put_rows,
    reset,
    restore,
    rows_bytes,
    take,
    take_rows,
)
from tr.decode.step import (
    Model,
    State,
    begin,
    check_prompt,
    cuts,
    init_state,
    is_short,
    read,
    read_short,
    reading,
)
from tr.decode.stream import Counts, Stream, advance, begun
from tr.decode.words import Listener
from tr.drafts.base import Draft
from tr.model.sampling import Sampling
from tr.progress import Stage

EVERY = 4096  # tokens of a long prompt from one snapshot to the next
SLABS = 4  # snapshots that stand in pinned memory, of at most a quarter of the budget


class Cancelled(Exception):
    """Who asked for a prompt gave it up; what was read of it is kept as far as it can be."""


@dataclass(eq=False)
class Turn:
    """A prompt that was read: `reused` of its tokens were known, `computed` are new.

    `stream` is good until the next turn is opened.
    """

    sessions: "Sessions"
    stream: Stream
    reused: int
    computed: int

    def answer(
        self,
        counts: Counts,
        max_tokens: int,
        eos: Sequence[int] = (),
        words: Listener | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        rule: Rule | None = None,
    ) -> Generator[list[int], None, None]:
        """At most `max_tokens` tokens (at least 1): the first one, then each step's.

        See `advance` for what ends them; then the text is ready for its next turn.
        """
        steps = speak(self.stream, counts, max_tokens, eos, words, cancelled, rule)
        return self._run(steps, False)

    def more(
        self, counts: Counts, max_tokens: int, eos: Sequence[int] = ()
    ) -> Generator[list[int], None, None]:
        """Up to `max_tokens` tokens behind those that were written."""
        return self._run(advance(self.stream, counts, max_tokens, eos), True)

    def _run(self, steps: Iterator[list[int]], at_once: bool) -> Generator[list[int], None, None]:
        """`at_once`: a step runs before the first tokens are there."""
        self.sessions.check(self)
        try:
            if at_once:
                self.sessions.settle()
            for tokens in steps:
                yield tokens
                self.sessions.check(self)
                self.sessions.settle()
        except GeneratorExit:
            raise
        except BaseException:
            self.sessions.drop()
            raise
        self.sessions.rest()


class Sessions:
    """Texts of up to `capacity` tokens each, one at a time on the device.

    `budget_bytes` bounds what the host holds: a text that does not fit there is let go of when
    another one takes its place. Raises ValueError where not even a snapshot fits.

    `passed` is called with the name of each phase of a turn when the host is through with it.
    `found` says how the last prompt's beginning was known: append (it ends where the device stood),
    snapshot (earlier in that text), host (it is another text's), miss (it was not).
    """

    def __init__(
        self,
        model: Model,
        draft: Draft,
        capacity: int,
        budget_bytes: int,
        every: int = EVERY,
        strict: bool = False,
    ) -> None:
        if every < 1:
            raise ValueError(f"sessions.every: expected at least 1 token, got {every}")
        self.model, self.draft, self.capacity, self.strict = model, draft, capacity, strict
        self.every = -(-every // model.chunk) * model.chunk if strict else every
        self.passed: Callable[[str], None] = lambda phase: None
        self.found = "miss"
        self._states: dict[tuple[Draft, ...], State] = {}
        self._turn: Turn | None = None
        self._active: Conversation | None = None  # whose rows stand on the device
        self._live: int | None = None  # where the state stands in it; None: at no known place
        self._owed = False  # a snapshot of the prompt's end, where the state still stands
        with torch.inference_mode():
            state = self._state(draft.open(()))
            size = sum(x.nbytes for x in parts(state, capacity, MAX_ROWS, draft.rows).values())
        if size > budget_bytes:
            raise ValueError(
                f"sessions.budget_bytes: a snapshot takes up to {size} bytes, {budget_bytes} are"
                " given; give more"
            )
        slab = power_of_two(size)  # as pinned memory comes
        slabs = min(SLABS, budget_bytes // (4 * slab))
        self._porter = Porter(model.params.norm.device, slab, slabs)
        self.held = Held(budget_bytes - self._porter.nbytes)

    def open(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        marks: Sequence[int] = (),
        goes_on: Callable[[int], bool] = lambda read: True,
        hear: Callable[[Tensor, int], None] | None = None,
    ) -> Turn:
        """Read the prompt `ids`, what is new of it, and draw the first token of an answer.

        `marks`: lengths of beginnings of `ids` where later prompts may part from it, such as the
        end of each message; each keeps a snapshot, as do the prompt's end, the answer's, and places
        `every` so many tokens apart.

        `goes_on` is told how many tokens stand, before the first chunk and after each; where it
        gives False this raises Cancelled, and the same prompt goes on from there: from the last
        chunk's end, or from the last snapshot where the draft did not take in all that it would
        see. `hear` as in `tr.decode.step.read`: then the whole prompt is read anew, by prefill.

        A prompt that is refused leaves everything as it was.
        """
        check_prompt(self.model, 0, len(ids), self.capacity, sampling)
        if wrong := [mark for mark in marks if not 0 <= mark <= len(ids)]:
            raise ValueError(f"marks: expected 0 .. {len(ids)}, the prompt's length, got {wrong}")
        self.rest()
        self.passed("rest")
        text = ids_of(ids)
        source, reused = self.held.longest(text) if hear is None else (None, 0)
        self.passed("match")
        try:
            with torch.inference_mode():
                draft = self._take_up(source, reused, ids)
                self.passed("take_up")
                with reading(self.model, len(ids) - reused) as told:
                    owed = self._read(draft, text, reused, marks, goes_on, hear, told)
                self.passed("read")
                state = begin(self.model, self._states[draft.programs], sampling)
                stream = begun(self.model, draft, sampling, state)
                self.passed("begin")
        except Cancelled:
            self._leave()
            self._wrote(reused, len(text))
            raise
        except BaseException:
            self.drop()
            raise
        self._live, self._owed = len(ids), owed
        self._turn = Turn(self, stream, reused, len(ids) - reused)
        return self._turn

    def check(self, turn: Turn) -> None:
        if turn is not self._turn:
            raise ValueError("turn: another one was opened since; open this text anew")

    @torch.inference_mode()
    def settle(self) -> None:
        """Keep the prompt's end, for which no first token waits, before a step leaves it."""
        if self._owed:
            assert self._turn is not None and self._active is not None
            self._owed = False
            self._keep(self._active, self._turn.stream.state)
            self.passed("keep")

    @torch.inference_mode()
    def rest(self) -> None:
        """Take in what the turn wrote so far, so that another one can go on from there."""
        turn, text = self._turn, self._active
        if turn is None or text is None:
            return
        self.settle()
        stream = turn.stream
        if stream.flight is not None:  # its tokens are on the device already
            for _ in advance(stream, Counts(), stream.flight.read()[0]):
                pass
        self._states[stream.draft.programs] = stream.state
        prompt, feed = turn.reused + turn.computed, stream.state.feed
        pos = int(feed.pos)
        self._wrote(prompt, pos)
        text.ids = torch.cat([text.ids[:prompt], feed.history[prompt : pos + 1].cpu()])
        if self.strict:
            self._live = pos if pos == prompt else None
        elif pos != self._live:
            if self._live is not None and self._live > prompt:  # where this answer rested before
                text.snapshots.pop(self._live, None)
            self._live = pos
            self._keep(text, stream.state)

    @torch.inference_mode()
    def save(self, path: str | Path) -> None:
        """Write all that is held to one file, which `load` takes back."""
        self.rest()
        texts = []
        for text in self.held.all:
            rows, saved = list(text.rows), text.saved
            if text is self._active and saved < text.end:
                state = self._states[text.draft.programs]
                pieces = take_rows(self._porter, state, saved, text.end)
                rows += [(piece, piece.stop) for piece in pieces]
            texts.append(replace(text, rows=rows))
        write(Path(path), self._made_by, [t for t in texts if t.snapshots])

    @torch.inference_mode()
    def load(self, path: str | Path) -> None:
        """Hold what another run saved as well, as far as there is room; the oldest goes first.

        Raises ValueError, and changes nothing, where the file is damaged or was made by another
        model, cache format, draft, capacity, kernel or way to read prompts: it says which.
        """
        texts = known(Path(path), self._made_by, self.draft)
        for text in texts:
            text.lost = (0, self.capacity + MAX_ROWS)
        self.held.all[:0] = texts
        self.held.shrink([self._active] if self._active else [])

    @cached_property
    def _made_by(self) -> dict[str, str]:
        return fingerprint(self.model, self.draft, self.capacity, self.strict)

    def forget(self) -> None:
        """Let go of all texts."""
        self._leave()
        self.held.all.clear()
        self._active = None

    def drop(self) -> None:
        """A turn failed: its text goes on from its last snapshot."""
        self.settle()
        self._leave()
        self._wrote(0, self.capacity)

    def _leave(self) -> None:
        """End the turn. Its stream lets go of the state: a captured step knows one tree of it."""
        if self._turn is not None:
            stream = self._turn.stream
            self._states[stream.draft.programs] = stream.state
            del stream.state
        self._turn = self._live = None
        self._owed = False

    def _take_up(self, source: Conversation | None, pos: int, ids: Sequence[int]) -> Draft:
        """Make `source` at `pos` the active text, and what the state and its rows stand for.

        Returns the strategy of the prompt `ids`.
        """
        snapshot = source.snapshots[pos] if source else None
        stays = source is not None and source is self._active and pos == source.end
        there = stays and pos == self._live
        behind = "snapshot" if source is self._active else "host"
        self.found = "miss" if source is None else "append" if there else behind
        self._leave()
        if not stays:
            self._save(source)
            self._active = None
        if source is None:
            text = Conversation(ids_of([]), self.draft, ids_of(ids))
        else:
            text = source if pos == source.end else source.until(pos)
        text.draft = text.draft.open(ids)
        state, put = self._state(text.draft), (pos, pos)
        if snapshot is None:
            reset(state)
        elif not there:
            assert source is not None
            low, high = text.lost
            put = put_rows(state, (rows for rows, _ in text.rows), low, min(high, pos))
            restore(state, snapshot, source.ids[:pos])
        self._active, text.lost = text, (0, 0)
        self._wrote(*put)  # `rest` and `drop` tell of what follows
        self.held.use(text)
        return text.draft

    def _read(
        self,
        draft: Draft,
        ids: Tensor,
        pos: int,
        marks: Sequence[int],
        goes_on: Callable[[int], bool],
        hear: Callable[[Tensor, int], None] | None,
        told: Stage,
    ) -> bool:
        """Read ids[pos:] up to each place that keeps a snapshot; whether the end is one to keep."""
        text, key, chunk = self._active, draft.programs, self.model.chunk
        assert text is not None
        if not goes_on(pos):
            raise Cancelled
        keeps = False
        for place in self._places(pos, len(ids), marks):
            sees_all = not draft.sight or place - draft.sight <= pos
            new = place - pos
            short = not self.strict and hear is None and is_short(draft, pos, new, self.capacity)
            for end in [place] if short else cuts(pos, new, chunk, self.strict):
                tokens, state = ids[pos:end].to(self.model.params.norm.device), self._states[key]
                if short:
                    state = read_short(self.model, draft, state, tokens)
                else:
                    state = read(self.model, draft, state, tokens, place, hear)
                self._states[key] = state
                told.advance(end - pos)
                pos = end
                if not goes_on(pos):
                    text.ids = ids[:pos]
                    if (sees_all or pos == place) and (not self.strict or pos % chunk == 0):
                        self._keep(text, self._states[key])
                    raise Cancelled
            text.ids = ids[:pos]
            keeps = not self.strict or pos % chunk == 0
            if keeps and pos < len(ids):
                self._keep(text, self._states[key])
        text.ids = ids
        return keeps

    def _places(self, pos: int, end: int, marks: Sequence[int]) -> list[int]:
        """Where reading ids[pos:end] stops for a snapshot, and its end."""
        wanted = {*marks, *range(self.every, end, self.every), end}
        if self.strict:
            wanted = {place - place % self.model.chunk for place in wanted}
        return sorted(place for place in wanted | {end} if pos < place <= end)

    def _state(self, draft: Draft) -> State:
        """The state of all texts that `draft` runs; all drafts share the target's."""
        key = draft.programs
        if key not in self._states:
            target = next((s.target for s in self._states.values()), None)
            self._states[key] = init_state(self.model, draft, self.capacity, target)
        return self._states[key]

    def _keep(self, text: Conversation, state: State) -> None:
        snapshot = take(self._porter, state)
        text.snapshots[snapshot.pos] = snapshot
        self._shrink(text)

    def _save(self, source: Conversation | None) -> None:
        """Bring the active text's rows to the host, before `source` or a new text takes its place.

        As far as a snapshot needs them; where they do not fit, the text is let go of.
        """
        text = self._active
        if text is None or text.saved >= text.end:
            return
        state, start = self._states[text.draft.programs], text.saved
        kept = [text, *([source] if source else [])]
        self.held.shrink(kept, rows_bytes(state, start, text.end))
        if self.held.nbytes + rows_bytes(state, start, text.end) <= self.held.budget:
            pieces = take_rows(self._porter, state, start, text.end)
            text.rows += [(rows, rows.stop) for rows in pieces]
        else:
            self.held.all.remove(text)

    def _shrink(self, text: Conversation) -> None:
        self.held.shrink([text])
        if self.held.nbytes > self.held.budget:
            text.rows.clear()  # they stand on the device

    def _wrote(self, start: int, stop: int) -> None:
        """Rows from `start` on are the active text's, and a step's rows past `stop`."""
        for other in self.held.all:
            if other is not self._active:
                other.lose(start, stop + MAX_ROWS)
