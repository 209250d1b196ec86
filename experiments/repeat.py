"""A decoding step repeated where nothing was read: random caches and states at a given context."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tr.bench import Draw
from tr.decode.step import Model, State, init_state
from tr.drafts.base import Draft, Feed, Stateless
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling
from tr.nn.formats.kv.cache import Cache, extend

CHUNK = 8192  # keys and values at a time


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

    def fill(x: Any) -> Any:
        """Numbers of deviation 0.1; a cache takes them as keys and values, by its own rounding."""
        if isinstance(x, Cache):
            heads, _, d = x.read(1, random.dtype)[0].shape
            for start in range(0, context, CHUNK):
                n = min(CHUNK, context - start)
                k, v = (random(n, heads, d).mul_(0.1) for _ in range(2))
                extend(x, k, v, start, model.ops)
        elif isinstance(x, Tensor) and x.is_floating_point():
            x.copy_(random(*x.shape).mul_(0.1))
        return x

    feed = state.feed
    feed.history.random_(model.ids, generator=random.generator)
    parts = [state.target.layers, state.draft, feed.hidden, feed.taps]
    pytree.tree_map(fill, parts, is_leaf=lambda x: isinstance(x, Cache))
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
