"""The decoding step: propose, verify, accept, commit; pure functions over one donated state.

Raw decoding is the case without drafts: one row, one token. Greedy or sampled, a row's token is
the target's own choice, and a draft is accepted exactly where it equals that choice, so the text
cannot depend on the draft.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.accept import finite
from kernels.define import MAX_ROWS
from kernels.kvarn import RING
from kernels.registry import Ops
from tr.decode.rule import masked
from tr.drafts.base import Draft, Feed
from tr.jit import forget, jit
from tr.model import text
from tr.model.sampling import Sampling, check_bias
from tr.nn.attention import State as Cache
from tr.progress import Stage, stage
from tr.tree import tree

GRID = 64  # tokens by which the delta rule goes: a chunk of a prompt is a multiple of it
CHUNK = 512  # prompt tokens read at once, where nothing else is asked for
SHORT = 4 * MAX_ROWS  # tokens behind others that a conversation reads as rows of steps, at most
MAX_ENDS = 16  # end tokens that a text may have


@tree
class Stops:
    """Where the device itself ends the text, so that the host may read late.

    A step cuts its rows so that the anchor never passes position `last` nor, behind `start`, one of
    the tokens `ends` (-1: an empty place). Once it stands there, a step keeps no row and leaves the
    state as it was.
    """

    ends: Int64[Tensor, " ends"]
    start: Int64[Tensor, ""]
    last: Int64[Tensor, ""]


@tree
class State:
    """A conversation in progress: target caches, the draft's own state, and the committed text."""

    target: text.State
    draft: Any
    feed: Feed
    stops: Stops
    prompt: Int64[Tensor, ""]  # where the last prompt ends: what stands there and on was written


@dataclass(frozen=True, eq=False)
class Model:
    """A target ready to decode. `ids` real tokens; `compiled` and `following` are `step` and
    `follow` through a jit backend. `chunk`: tokens of a prompt that are read at once.
    """

    params: text.Params
    ops: Ops
    ids: int
    compiled: Callable[..., tuple[Tensor, Tensor, State]]
    following: Callable[..., tuple[State]]
    chunk: int = CHUNK

    @classmethod
    def build(
        cls,
        params: text.Params,
        ops: Ops,
        ids: int,
        backend: str = "eager",
        chunk: int = CHUNK,
    ) -> "Model":
        if chunk < 1 or chunk % GRID:
            raise ValueError(
                f"prefill.chunk_tokens: expected a positive multiple of {GRID}, got {chunk}"
            )
        device = params.norm.device
        compiled = jit(step, backend, "state", ("sampling",), device, written)
        following = jit(follow, backend, "state", (), device, written)
        return cls(params, ops, ids, compiled, following, chunk)

    def step(
        self, draft: Draft, state: State, sampling: Sampling, rows: int
    ) -> tuple[Tensor, Tensor, State]:
        """`step` below; under a graph backend its tensors are overwritten by the next call."""
        return self.compiled(self, draft, state, sampling, rows)

    def forget(self) -> None:
        """Free what graphs keep of states that nobody holds any more."""
        forget(self.compiled)
        forget(self.following)


def init_state(
    model: Model, draft: Draft, capacity: int, target: text.State | None = None
) -> State:
    """Empty state for texts of up to `capacity` tokens, prompt and output together.

    `target`: the one of another draft, which is shared; one of both is in use.
    """
    if draft.rows > MAX_ROWS:
        raise ValueError(
            f"draft.tokens: at most {MAX_ROWS - 1} drafts a step, got {draft.rows - 1}"
        )
    if target is None:
        target = text.init_state(model.params, capacity, MAX_ROWS)
    norm = model.params.norm
    zero = torch.zeros((), dtype=torch.int64, device=norm.device)
    return State(
        target=target,
        draft=draft.init_state(capacity),
        feed=Feed(
            anchor=zero,
            pos=zero.clone(),
            count=zero.clone(),
            hidden=norm.new_zeros(draft.rows, norm.shape[0]),
            taps=norm.new_zeros(draft.rows, len(draft.taps) * norm.shape[0]),
            history=torch.zeros(capacity + 1, dtype=torch.int64, device=norm.device),
        ),
        stops=Stops(
            ends=torch.full((MAX_ENDS,), -1, device=norm.device),
            start=zero.clone(),
            last=torch.full_like(zero, capacity),
        ),
        prompt=zero.clone(),
    )


def set_stops(state: State, start: int, last: int, ends: Sequence[int]) -> None:
    """From the anchor at `start` on, end the text at position `last` or with one of `ends`."""
    if len(ends) > MAX_ENDS:
        raise ValueError(f"eos: expected at most {MAX_ENDS} end tokens, got {len(ends)}")
    stops = state.stops
    stops.ends.copy_(torch.tensor([*ends, *[-1] * (MAX_ENDS - len(ends))]))
    stops.start.fill_(start)
    stops.last.fill_(last)


def cuts(pos: int, tokens: int, chunk: int, strict: bool = False) -> list[int]:
    """Where the chunks end in which `tokens` tokens behind `pos` others are read, in order.

    All but the last end on a multiple of 64, counted from the text's first token; no chunk is
    longer than `chunk`. `strict`: on multiples of `chunk` itself. A prompt that goes on from one of
    those is then read in the very calls that would have read it whole, which gives the same bits.
    """
    end, step = pos + tokens, chunk if strict else GRID
    found = []
    while pos < end:
        pos = min((pos + chunk) // step * step, end)
        found.append(pos)
    return found


def prefill(
    model: Model,
    draft: Draft,
    state: State,
    prompt: Int64[Tensor, " tokens"],
    sampling: Sampling,
    strict: bool = False,
    turn: bool = False,
) -> State:
    """Read the prompt after what `state` already holds and draw the first token, the new anchor.

    `state` is donated; `strict` as in `cuts`. `turn`: read it as a conversation's next turn, where
    it `is_short` as rows of steps; else every token goes through prefill, as few as they may be.
    Raises ValueError for an empty prompt and one that leaves no room.
    """
    done, capacity = int(state.target.pos), len(state.feed.history) - 1
    check_prompt(model, done, len(prompt), capacity, sampling)
    if turn and is_short(draft, done, len(prompt), capacity):
        return begin(model, read_short(model, draft, state, prompt), sampling)
    ends = cuts(done, len(prompt), model.chunk, strict)
    with reading(model, len(prompt)) as told:
        for start, stop in zip([done, *ends], ends, strict=False):
            state = read(model, draft, state, prompt[start - done : stop - done], ends[-1])
            told.advance(stop - start)
    return begin(model, state, sampling)


def reading(model: Model, tokens: int) -> AbstractContextManager[Stage]:
    """The stage of reading `tokens` tokens of a prompt; of a single chunk nothing is told."""
    return stage("prefill", tokens, "tokens", told=tokens > model.chunk)


def check_prompt(model: Model, done: int, tokens: int, capacity: int, sampling: Sampling) -> None:
    """Refuse a prompt of `tokens` tokens behind `done` others that cannot be read or answered."""
    if tokens == 0:
        raise ValueError("prompt: expected at least 1 token, got none; give a text")
    if done + tokens > capacity:
        raise ValueError(
            f"prompt: {done + tokens} tokens exceed the window of {capacity}; shorten the prompt or"
            " raise kv.capacity_tokens"
        )
    check_bias(sampling, model.ids)


def read(
    model: Model,
    draft: Draft,
    state: State,
    tokens: Int64[Tensor, " tokens"],
    end: int,
    hear: Callable[[Tensor, int], None] | None = None,
) -> State:
    """Read one chunk of a prompt; `state` is donated. `begin` then draws the text's next token.

    The draft takes in what it will still see when it is first asked at `end`: the prompt's end, or
    an earlier place where the text is to be taken up again. `hear` gets the rows that the head
    would read [tokens, d_model], and the position of the first one.
    """
    feed, target, kept = state.feed, state.target, state.draft
    pos, last = int(target.pos), len(tokens) - 1
    if int(state.prompt) < pos < draft.reach - 1:  # where a further step would have taken them in
        kept = draft.take_in(kept, feed)
    first = max(0, end - draft.sight - pos)  # of the chunk's tokens, the first one in sight
    seen = min(first, last)
    taps = draft.taps if first <= last or pos + len(tokens) == end else ()
    hidden, tapped, target = text.prefill(model.params, target, tokens, model.ops, taps, seen)
    if hear is not None:
        hear(hidden, pos)
    if first <= last:
        kept = draft.prime(kept, tokens[first:], hidden[first:], tapped, pos + first)
    feed.history[pos : pos + len(tokens)] = tokens
    feed.hidden[0] = hidden[-1]
    if taps:
        feed.taps[0] = tapped[-1]
    feed.count.fill_(1)
    feed.pos.copy_(target.pos)
    state.prompt.copy_(target.pos)
    return replace(state, target=target, draft=kept)


def is_short(draft: Draft, pos: int, tokens: int, capacity: int) -> bool:
    """Whether a turn reads `tokens` tokens behind `pos` others as rows of steps.

    They are few, some token stands, and the rows that a last round has too many have room.
    """
    room = min(capacity, draft.reach) - MAX_ROWS
    return pos > 0 and tokens <= SHORT and pos + tokens < room


def read_short(model: Model, draft: Draft, state: State, tokens: Int64[Tensor, " tokens"]) -> State:
    """`read` for a whole prompt that `is_short`: the same but for rounding; `state` is donated."""
    pos, feed = int(state.feed.pos), state.feed
    feed.history[pos : pos + len(tokens)] = tokens
    state.prompt.fill_(pos + len(tokens))
    for _ in range(0, len(tokens), MAX_ROWS):
        (state,) = model.following(model, draft.programs[0], state, MAX_ROWS)
    return state


def follow(model: Model, draft: Draft, state: State, rows: int) -> tuple[State]:
    """One round over a prompt's tokens from `feed.pos` on, `rows` of them or up to `state.prompt`.

    They stand in `feed.history`. `state` is donated and has room for all rows; those past the
    prompt's end are never kept, as rejected drafts are not. Nothing is read on the host, so that
    one captured round serves every remainder. `feed` then holds the last row, as behind a prefill,
    and the draft has taken in all of them.
    """
    feed = state.feed
    kept = draft.take_in(state.draft, feed)  # a row may wait for the token behind it
    at = feed.pos + torch.arange(rows, device=feed.pos.device)
    ids = feed.history.index_select(0, at)
    out, target = text.step(model.params, state.target, ids, model.ops, draft.taps)
    count = (state.prompt - feed.pos).clamp(max=rows)
    feed.pos.copy_(text.commit(target, count).pos)
    hidden = out.hidden.whole(model.ops)
    kept = draft.take_in(kept, replace(feed, count=count, hidden=hidden, taps=out.taps))
    for held, new in ((feed.hidden, hidden), (feed.taps, out.taps)):
        if new.shape[1]:
            held[:1] = new.index_select(0, count[None] - 1)
    feed.count.fill_(1)
    return (replace(state, target=target, draft=kept),)


def begin(model: Model, state: State, sampling: Sampling) -> State:
    """Draw the first token behind the prompt that was read, the new anchor; `state` is donated."""
    logits = prompt_logits(model, state)
    if not finite(logits, model.ids):
        raise not_finite(int(state.feed.pos))
    return set_anchor(model, state, logits, sampling)


def prompt_logits(model: Model, state: State) -> Tensor:
    """What the first token behind the prompt that was read is drawn from, [1, vocab]."""
    return model.params.head.sequence(state.feed.hidden[:1], model.ops)


def set_anchor(
    model: Model, state: State, logits: Tensor, sampling: Sampling, mask: Tensor | None = None
) -> State:
    """Draw the anchor from its row of logits [1, vocab], among the ids of `mask`.

    `state` is donated. In place of an anchor that was drawn before, this takes its noise.
    """
    feed = state.feed
    last = feed.history.index_select(0, feed.pos[None] - 1)
    anchor = draw(model, logits, feed.pos, sampling, last, state, mask)[0]
    feed.history.index_copy_(0, feed.pos[None], anchor[None])
    feed.anchor.copy_(anchor)
    return state


def step(
    model: Model, draft: Draft, state: State, sampling: Sampling, rows: int
) -> tuple[Tensor, Tensor, State]:
    """One round of `rows` rows, the anchor and rows - 1 drafts; `state` comes back committed.

    `state` is donated and must have room for as many tokens; nothing is read on the host.

    Returns int64 [2 * rows]: how many rows were kept, each row's token, of which the kept ones are
    new, and the drafts as proposed; the logits [rows, vocab]; and the state. No row is kept where
    `state.stops` ended the text, or where a logit of a real token is not a finite number: the state
    then stands for what it stood for. `keep` cuts a step shorter afterwards.
    """
    feed, stops, ops = state.feed, state.stops, model.ops
    drafts, kept = None, state.draft
    if rows > 1:
        drafts, kept = draft.propose(kept, feed, sampling)
        drafts = drafts[: rows - 1]
    anchor = feed.anchor[None]
    out, target = text.step(model.params, state.target, anchor, ops, draft.taps, drafts)
    chosen = draw(model, out.logits, out.places[0], sampling, out.tokens, state)
    result = ops.accept(
        out.logits,
        model.ids,
        chosen,
        drafts,
        stops.ends,
        stops.start,
        stops.last,
        out.hidden.x,
        out.hidden.squares,
        out.taps,
        feed.anchor,
        feed.pos,
        target.pos,
        target.pending,
        feed.count,
        feed.hidden,
        feed.taps,
        feed.history,
    )
    return result, out.logits, replace(state, target=target, draft=kept)


def written(state: State) -> list[Tensor]:
    """Views of all that one step may write; waits for the device.

    Of a cache the rows around the anchor, where the last step's rows and drafts of the next ones
    stand, and tiles that are packed behind it; all else whole.
    """
    pos = int(state.feed.pos)
    around = max(0, pos - MAX_ROWS - RING), pos + 2 * MAX_ROWS
    found: list[Tensor] = []
    for x in pytree.tree_leaves(state, is_leaf=lambda x: isinstance(x, Cache)):
        if isinstance(x, Cache):
            found += x.rows(*around)
        elif isinstance(x, Tensor):
            found.append(x)
    return found


def keep(state: State, rows: Tensor) -> State:
    """Cut the last step, which was committed, to its first `rows` rows: a stop inside a block.

    `state` is donated. The token after them becomes the anchor. The rows past the cut leave no
    trace that anything reads. After 0 rows what a draft reads is still the step before.
    """
    feed = state.feed
    feed.pos.copy_(text.cut(state.target, rows).pos)
    feed.count.copy_(torch.where(rows > 0, rows, feed.count))
    feed.anchor.copy_(feed.history.index_select(0, feed.pos[None])[0])
    return state


def draw(
    model: Model,
    logits: Tensor,
    position: Tensor,
    sampling: Sampling,
    tokens: Tensor,
    state: State,
    mask: Tensor | None = None,
) -> Tensor:
    """The target's token for each row of logits; row i read tokens[i], its own is at position + i.

    Penalties count what `state` holds before `position` and the rows' tokens after the first one.
    `mask`, as in `tr.decode.rule`, names the tokens that a row may choose.
    """
    s = sampling
    if s.adjusts:
        logits = model.ops.penalize(
            logits,
            position,
            tokens,
            state.feed.history,
            state.prompt,
            s.presence,
            s.frequency,
            s.repetition,
            s.bias_ids,
            s.bias,
            model.ids,
        )
    if mask is not None:
        logits = masked(logits[:, : model.ids], mask)
    return model.ops.sample(
        logits, position, s.temperature, s.top_k, s.top_p, s.min_p, s.seed, model.ids, s.cuts
    )


def not_finite(position: int) -> ValueError:
    return ValueError(
        f"logits at position {position} are not finite; the weights or the cache are"
        " damaged: check the checkpoint, or run kernel=reference"
    )
