"""A decoding step repeated where nothing was read: random caches and states at a given context."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tr.bench import Draw
from tr.decode.step import Model, State, init_state
from tr.drafts.base import Draft, Feed, Stateless
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling
from tr.tree import map_tensors


@dataclass(frozen=True)
class Fixed(Stateless):
    """Drafts that cost nothing: whatever stands in the history past the anchor."""

    rows: int
    name: str = "fixed"

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        where = feed.pos + 1 + torch.arange(self.rows - 1, device=feed.pos.device)
        return feed.history.index_select(0, where), None


def state_at(
    model: Model,
    context: int,
    rows: int,
    capacity: int,
    seed: int,
    strategy: Draft | None = None,
) -> State:
    """A state with `context` tokens behind it, one row pending; all it holds is random numbers.

    For steps by `strategy`, or by drafts that cost nothing.
    """
    state = init_state(model, strategy or draft(rows), capacity)
    random = Draw(model.params.norm.device, seed=seed)

    def fill(x: Tensor) -> Tensor:
        drawn = torch.bfloat16 if x.itemsize == 1 else x.dtype  # float8 has no arithmetic
        return x.copy_(random(*x.shape, dtype=drawn).mul_(0.1)) if x.is_floating_point() else x

    feed = state.feed
    map_tensors(fill, state.target.layers)
    feed.history.random_(model.ids, generator=random.generator)
    map_tensors(fill, [state.draft, feed.hidden, feed.taps])
    put(state, context, min(context, 1))
    feed.anchor.copy_(feed.history[context])
    return state


def put(state: State, context: int, pending: int) -> None:
    """Let `state` have `context` tokens behind it, the last `pending` of them not folded in."""
    for place in (state.feed.pos, state.target.pos):
        place.fill_(context)
    for count in (state.feed.count, state.target.pending):
        count.fill_(pending)


def draft(rows: int) -> Raw | Fixed:
    return Raw() if rows == 1 else Fixed(rows)
