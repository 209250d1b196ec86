"""The decoding step: propose, verify, accept, commit; pure functions over one donated state.

Raw decoding is the case without drafts: one row, one token. Greedy or sampled, a row's token is
the target's own choice, and a draft is accepted exactly where it equals that choice, so the text
cannot depend on the draft.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.registry import Ops
from tr.drafts.base import Draft, Feed
from tr.jit import jit
from tr.model import text
from tr.model.sampling import Sampling
from tr.tree import tree, typed

CHUNK = 512  # prompt tokens a prefill call takes; a multiple of the delta rule's 64


@tree
class State:
    """A conversation in progress: target caches, the draft's own state, and the committed text."""

    target: text.State
    draft: Any
    feed: Feed


@dataclass(frozen=True, eq=False)
class Model:
    """A target ready to decode. `ids` real tokens; `step` is `text.step` through a jit backend."""

    params: text.Params
    ops: Ops
    ids: int
    step: Any

    @classmethod
    def build(cls, params: text.Params, ops: Ops, ids: int, backend: str = "eager") -> "Model":
        return cls(params, ops, ids, jit(text.step, backend))


def init_state(model: Model, draft: Draft, capacity: int) -> State:
    """Empty state for texts of up to `capacity` tokens, prompt and output together."""
    if draft.rows > MAX_ROWS:
        raise ValueError(
            f"draft.tokens: at most {MAX_ROWS - 1} drafts a step, got {draft.rows - 1}"
        )
    target = text.init_state(model.params, capacity, draft.rows)
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
    )


def prefill(
    model: Model, draft: Draft, state: State, prompt: Int64[Tensor, " tokens"], sampling: Sampling
) -> State:
    """Read the prompt after what `state` already holds and draw the first token, the new anchor.

    `state` is donated. Raises ValueError for an empty prompt and one that leaves no room.
    """
    feed, target, kept = state.feed, state.target, state.draft
    done, capacity = int(target.pos), len(feed.history) - 1
    if len(prompt) == 0:
        raise ValueError("prompt: expected at least 1 token, got none; give a text")
    if done + len(prompt) > capacity:
        raise ValueError(
            f"prompt: {done + len(prompt)} tokens exceed the window of {capacity}; shorten the"
            " prompt or raise kv.capacity_tokens"
        )
    for chunk in prompt.split(CHUNK):
        pos = int(target.pos)
        hidden, taps, target = text.prefill(model.params, target, chunk, draft.taps)
        kept = draft.prime(kept, chunk, hidden, taps, pos)
    logits = model.params.head.sequence(hidden[-1:])
    anchor = draw(model, logits, target.pos, sampling)[0]
    feed.history[done : done + len(prompt)] = prompt
    feed.history[done + len(prompt)] = anchor
    feed.hidden[0], feed.taps[0] = hidden[-1], taps[-1]
    feed.anchor.copy_(anchor)
    feed.pos.copy_(target.pos)
    feed.count.fill_(1)
    return State(target=target, draft=kept, feed=feed)


def step(
    model: Model, draft: Draft, state: State, sampling: Sampling
) -> tuple[Tensor, Tensor, int, State]:
    """One round, as long as the draft and the window allow; `state` comes back committed.

    `state` is donated and must have room for one more token.

    Returns the new tokens (accepted drafts, then the target's own), the number of accepted drafts
    as a tensor, how many were proposed, and the state. `keep` cuts it shorter afterwards.
    """
    feed = state.feed
    pos, capacity = int(feed.pos), len(feed.history) - 1
    limit = min(draft.rows, draft.reach - pos, capacity - pos)
    if limit > 1:
        drafts, kept = draft.propose(state.draft, feed, sampling)
        drafts = drafts[: limit - 1]
    else:
        drafts, kept = feed.history[:0], state.draft
    feed.count.zero_()
    tokens = torch.cat([feed.anchor[None], drafts])
    rows, target = model.step(model.params, state.target, tokens, model.ops, draft.taps)
    chosen = draw(model, rows.logits, target.pos + 1, sampling)
    accepted = accept(drafts, chosen)
    feed.hidden[: len(tokens)] = rows.hidden
    feed.taps[: len(tokens)] = rows.taps
    feed.history[pos + 1 : pos + 1 + len(tokens)] = chosen
    state = State(target=target, draft=kept, feed=feed)
    return chosen, accepted, len(drafts), keep(state, accepted + 1)


def keep(state: State, rows: Tensor) -> State:
    """Commit the first `rows` rows of the last step; `state` is donated.

    The token after them becomes the anchor. Also cuts a committed step shorter: a stop inside a
    block. The rows past the cut leave no trace that anything reads.
    """
    feed = state.feed
    feed.pos.add_(rows - feed.count)
    feed.count.copy_(rows)
    feed.anchor.copy_(feed.history.index_select(0, feed.pos[None])[0])
    return State(target=text.commit(state.target, rows), draft=state.draft, feed=feed)


@typed
def accept(drafts: Int64[Tensor, " drafts"], chosen: Int64[Tensor, " rows"]) -> Int64[Tensor, ""]:
    """How many leading drafts equal what the target chose after the token before them."""
    return (drafts == chosen[: len(drafts)]).cumprod(0).sum()


def draw(model: Model, logits: Tensor, position: Tensor, sampling: Sampling) -> Tensor:
    """The target's token for each row of logits; row i's stands at position + i.

    Raises ValueError where a logit is not a finite number.
    """
    if not torch.isfinite(logits[:, : model.ids]).all():
        raise ValueError(
            f"logits at position {int(position)} are not finite; the weights or the cache are"
            " damaged: check the checkpoint, or run kernel=reference"
        )
    s = sampling
    return model.ops.sample(
        logits, position, s.temperature, s.top_k, s.top_p, s.min_p, s.seed, model.ids
    )
