"""A conversation on the host: steps are launched, read, one late on a GPU, and ended exactly.

While a step runs, the host reads the one before it, so that the device never waits for the host.
What can end a text is found late then, in step t, when step t + 1 has started and folded all of
t's rows into the recurrent state: nothing inside t can be undone any more. So the device ends the
text itself where ids and positions say it (`Stops`): end tokens, the budget and the window. Step
t + 1 then keeps nothing and changes nothing. Where it could not have room for its rows, it waits.
Stop strings and rules are known to the host alone: with them it reads each step before the next one
starts, and `keep` cuts it. Cancelling takes in the step that is running.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tr.decode.logprobs import Logprob, tell, told
from tr.decode.rule import Rule
from tr.decode.step import (
    Model,
    State,
    init_state,
    keep,
    not_finite,
    prefill,
    prompt_logits,
    set_anchor,
    set_stops,
)
from tr.decode.words import Listener
from tr.drafts.base import BROKEN, Draft, Seen
from tr.model.sampling import Sampling


@dataclass
class Counts:
    """What a generation did. A step emits its accepted drafts and one token of the target's own.

    `kept` [steps]: tokens each step put into the text, the last one's cut included. `proposed` and
    `accepted` [steps]: drafts, before any cut; `refused` [steps]: of the proposed, places for which
    there was no draft, and `broken` how many of all these had draft logits that are no finite
    numbers. `ran` [steps]: the name of what drafted. `seconds` covers the steps alone, without
    prefill; the caller's time counts where a step runs meanwhile. `logprobs` [tokens] are there
    where the stream tells them; `redrawn` tokens were drawn again for a rule.
    """

    tokens: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    broken: int = 0
    redrawn: int = 0
    logprobs: list[Logprob] = field(default_factory=list)
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    stop: str = ""  # string, eos, rule, length (as asked for), window (it is full) or cancelled

    @property
    def steps(self) -> int:
        return len(self.kept)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that steps put into the text over steps; the prefill's own token is no step's."""
        return sum(self.kept) / len(self.kept) if self.kept else 0.0


def warnings(broken: int) -> tuple[str, ...]:
    """What to say of `broken` refused drafts."""
    if not broken:
        return ()
    return (f"draft: {broken} drafts were refused: their logits were not finite numbers",)


class Flight:
    """A launched step: its row count, what drafted, and its result on the way to the host.

    `logprobs`: what `tell` says of the step's rows.
    """

    def __init__(
        self, rows: int, result: Tensor, ran: str = "", logprobs: Tensor | None = None
    ) -> None:
        self.rows, self.ran = rows, ran
        self._result = result.to("cpu", non_blocking=True)  # pinned; before the next launch
        self._told = None if logprobs is None else logprobs.to("cpu", non_blocking=True)
        self._event = None
        if result.is_cuda:
            self._event = torch.cuda.current_stream(result.device).record_event()

    def read(self) -> tuple[int, list[int], list[int]]:
        """How many rows the device kept, every row's token, and the drafts; waits for the step."""
        if self._event is not None:
            self._event.synchronize()
        n, *rest = self._result.tolist()
        return n, rest[: self.rows], rest[self.rows :]

    def logprobs(self) -> list[Logprob]:
        """Every row's, of a step that was read; none where the stream tells none."""
        return [] if self._told is None else [told(row) for row in self._told.tolist()]


@dataclass
class Stream:
    """A conversation: its state, and what the host knows of it.

    `late`: whether the host reads a step while the next one runs. `flight` is a step that runs or
    has not been read: None but for a caller who dropped `advance`; the next one yields it first.
    `logits` are the last step's, None before the first one; `top` alternatives to each token are
    told with its logarithm, None: neither.
    """

    model: Model
    draft: Draft
    sampling: Sampling
    state: State
    late: bool = False
    flight: Flight | None = None
    seen: list[Seen] = field(default_factory=list)
    logits: Tensor | None = None
    top: int | None = None

    @property
    def pos(self) -> int:
        """Position of the anchor, the last token of the text; waits for the device."""
        return int(self.state.feed.pos)

    @property
    def capacity(self) -> int:
        return len(self.state.feed.history) - 1

    def rows(self, picked: int, draft: Draft, pos: int) -> int:
        """The rows of a step whose anchor stands at `pos`."""
        return max(1, min(picked, draft.reach - pos, self.capacity - pos))

    def end(self, start: int, last: int, ends: Sequence[int]) -> None:
        """Let the device end the text that follows the anchor at `start`."""
        with torch.inference_mode():
            set_stops(self.state, start, last, ends)

    def launch(self, draft: Draft, rows: int) -> Flight:
        with torch.inference_mode():
            feed = self.state.feed
            if rows > 1 and feed.pos.is_cpu:
                rows = min(rows, draft.found(feed) + 1)
            model = self.model
            result, self.logits, self.state = model.step(draft, self.state, self.sampling, rows)
            logprobs = None
            if self.top is not None:
                logprobs = tell(self.logits, result[1 : rows + 1], model.ids, self.top)
            return Flight(rows, result, draft.name, logprobs)

    def cut(self, rows: int) -> None:
        """Keep `rows` rows of the last step, which kept more."""
        with torch.inference_mode():
            self.state = keep(self.state, torch.full_like(self.state.feed.count, rows))

    def redraw(self, mask: Tensor, row: int = 0) -> int:
        """Draw the token of `row` of the last step, or the prompt's first, again among `mask`'s.

        The rows behind it are undone.
        """
        with torch.inference_mode():
            if self.logits is not None:
                self.cut(row + 1)
            mask = mask.to(self.state.feed.pos.device)
            logits = self.row_logits(row)
            self.state = set_anchor(self.model, self.state, logits, self.sampling, mask)
            token = int(self.state.feed.anchor)
        if self.logits is None:
            self.seen[0] = Seen(1, 1, tokens=(token,))
        return token

    def row_logits(self, row: int) -> Tensor:
        """What the token of `row` of the last step, or the prompt's first, is drawn from."""
        if self.logits is None:
            return prompt_logits(self.model, self.state)
        return self.logits[row : row + 1]

    def logprob(self, token: int, row: int = 0) -> Logprob:
        """What is told of `token` as that of `row`."""
        assert self.top is not None
        with torch.inference_mode():
            logits = self.row_logits(row)
            tokens = torch.tensor([token], device=logits.device)
            return told(tell(logits, tokens, self.model.ids, self.top)[0].tolist())


def open_stream(
    model: Model, draft: Draft, prompt: Sequence[int], sampling: Sampling, capacity: int
) -> Stream:
    """Read a prompt; the first token of the answer is drawn and stands as the anchor."""
    device, draft = model.params.norm.device, draft.open(prompt)
    with torch.inference_mode():
        state = init_state(model, draft, capacity)
        ids = torch.tensor(list(prompt), dtype=torch.int64, device=device)
        state = prefill(model, draft, state, ids, sampling)
    return begun(model, draft, sampling, state)


def begun(model: Model, draft: Draft, sampling: Sampling, state: State) -> Stream:
    """The stream of a prompt that was read: its first token stands as the anchor."""
    read = [Seen(1, 1, tokens=(int(state.feed.anchor),))]
    late = state.feed.pos.is_cuda
    return Stream(model, draft, sampling, state, late, seen=read)


def advance(
    stream: Stream,
    counts: Counts,
    max_tokens: int,
    eos: Sequence[int] = (),
    words: Listener | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    rule: Rule | None = None,
) -> Generator[list[int], None, None]:
    """Add up to `max_tokens` tokens, yielding each step's; `counts.stop` says what ended them.

    An end token is kept. `words` takes in every token and ends the text with the one that completes
    a stop string, which is kept as well. `rule` says what each token may be, and may end the text.
    `cancelled` is asked between steps.

    After any stop the stream stands exactly at the last yielded token: the rows behind it are
    committed, those past it are gone, and a further `advance` goes on as if never stopped.
    """
    left, armed = stream.flight, False
    pos = stream.pos - (left.read()[0] if left else 0)
    end, leaving = pos + max_tokens, False
    waits = not stream.late or rule is not None or (words is not None and bool(words.stops))
    began = time.perf_counter()
    while not counts.stop:
        leaving = leaving or cancelled()
        ahead, upper = stream.flight, pos
        if ahead:
            upper += ahead.rows
        elif pos >= end or pos >= stream.capacity:
            counts.stop = "length" if pos >= end else "window"
            return
        elif leaving:
            counts.stop = "cancelled"
            return
        launched = None
        if ahead is not left or left is None:
            draft, picked = stream.draft.pick(stream.seen)
            rows = stream.rows(picked, draft, pos)
            sure = upper < min(end, stream.capacity) and rows == stream.rows(picked, draft, upper)
            if sure and not leaving:
                if not armed:
                    stream.end(pos, end, eos)
                    armed = True
                launched = stream.launch(draft, rows)
        left = None
        if ahead is None and not waits:
            stream.flight = launched
            continue
        flight = ahead or launched
        assert flight is not None
        stream.flight = launched if ahead else None
        tokens = _take(stream, flight, counts, pos, end, eos, words, rule)
        pos += len(tokens)
        if stream.flight is None:
            counts.seconds += time.perf_counter() - began
        yield tokens
        if stream.flight is None:
            began = time.perf_counter()


def _take(
    stream: Stream,
    flight: Flight,
    counts: Counts,
    pos: int,
    end: int,
    eos: Sequence[int],
    words: Listener | None,
    rule: Rule | None,
) -> list[int]:
    """Read a step whose anchor stood at `pos`: the tokens that it adds, and why the text ends."""
    n, tokens, drafts = flight.read()
    logprobs = flight.logprobs()
    if not n:
        stream.flight = None
        raise not_finite(pos + 1)
    right = next((i for i, d in enumerate(drafts) if d != tokens[i]), len(drafts))
    cut = min(n, end - pos)
    for i, token in enumerate(tokens[:cut]):
        again = rule is not None and not rule.push(token)
        if again:
            token = tokens[i] = redrawn(stream, counts, rule, i)
            n = i + 1
            if logprobs:
                logprobs[i] = stream.logprob(token, i)
        counts.stop = ended(token, eos, words, rule)
        if again or counts.stop:
            cut = i + 1
            break
    if cut < n:
        stream.cut(cut)
    if counts.stop:
        stream.flight = None  # it kept nothing
    counts.kept.append(cut)
    counts.proposed.append(len(drafts))
    counts.accepted.append(right)
    counts.refused.append(sum(d < 0 for d in drafts))
    counts.ran.append(flight.ran)
    counts.broken += drafts.count(BROKEN)
    counts.tokens += tokens[:cut]
    counts.logprobs += logprobs[:cut]
    stream.seen.append(Seen(flight.rows, right + 1, flight.ran, tuple(tokens[:cut])))
    return tokens[:cut]


def redrawn(stream: Stream, counts: Counts, rule: Rule, row: int = 0) -> int:
    """What stands in place of a token that `rule` refused; see `Stream.redraw`."""
    counts.redrawn += 1
    token = stream.redraw(rule.mask(), row)
    if not rule.push(token):
        raise ValueError(f"rule: token {token} is in its mask and is refused all the same")
    return token


def ended(token: int, eos: Sequence[int], words: Listener | None, rule: Rule | None) -> str:
    """Why the text ends with `token`, which both take in; empty: it goes on."""
    if words is not None and words.push(token):
        return "string"
    if token in eos:
        return "eos"
    return "rule" if rule is not None and rule.done else ""
