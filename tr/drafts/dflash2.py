"""DFlash 2: a block of drafts in one pass, from a ring of keys that the target's residuals feed.

The ring keeps the last positions only, since a row never sees further back than the window. A step
writes the rows it verified last; those that were rejected lie at or past the anchor's position, are
masked, and are overwritten before their positions are real.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.dflash_select import reference as dflash_select
from tr.drafts import dflash2_net as net
from tr.drafts import dflash2_step
from tr.drafts.base import BROKEN, Feed, Full
from tr.drafts.dflash2_step import Fused
from tr.drafts.head import Head
from tr.model import text
from tr.model.sampling import Sampling, noiseless
from tr.tree import tree


@tree
class State:
    """Ring row r of a layer holds position p with p mod size = r, the largest one written."""

    ring: tuple[net.Context, ...]  # batch 1


def ring_rows(config: net.Config, window: int) -> int:
    """Smallest power of two that holds a window and the rows one step may write past it."""
    return 1 << (window + max(2 * config.block, MAX_ROWS) - 1).bit_length()


@dataclass(frozen=True, eq=False)
class Dflash2(Full):
    params: net.Params
    target: text.Params
    tokens: int
    head: Head
    window: int  # at most the one it was trained with
    fused: Fused | None = None  # how a block runs; None: as in training
    noise: bool = True  # sampling: draft with the target's own noise, or as if it were greedy
    name: str = "dflash2"

    def __post_init__(self) -> None:
        c = self.params.config
        if not 1 <= self.tokens < c.block:
            raise ValueError(
                f"draft.tokens: a block of {c.block} holds 1 .. {c.block - 1} drafts,"
                f" got {self.tokens}"
            )
        if not 1 <= self.window <= c.window:
            raise ValueError(f"draft.window: expected 1 .. {c.window}, got {self.window}")
        if self.head.count < c.selector_top:
            raise ValueError(
                f"draft.head: the selector takes the best {c.selector_top} tokens, the slice has"
                f" {self.head.count}; give it more ids"
            )

    @property
    def rows(self) -> int:
        return self.tokens + 1

    @property
    def reach(self) -> int:
        return self.params.rope.cos.shape[0] - self.params.config.block + 1

    @property
    def taps(self) -> tuple[int, ...]:
        return self.params.config.taps

    @property
    def sight(self) -> int:
        return self.window - 1

    def init_state(self, capacity: int) -> State:
        c = self.params.config
        shape = (1, c.kv_heads, ring_rows(c, self.window), c.d_head)
        norm = self.params.norm
        return State(
            ring=tuple(
                net.Context(k=norm.new_zeros(shape), v=norm.new_zeros(shape))
                for _ in range(c.layers)
            )
        )

    def prime(self, state: State, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> State:
        end = min(len(taps), self.params.rope.cos.shape[0] - pos)  # past the tables: of no use
        keep = min(end, ring_rows(self.params.config, self.window))  # later rows win
        if keep < 1:
            return state
        first = pos + end - keep
        positions = torch.arange(first, first + keep, device=taps.device)
        return self._write(state, taps[end - keep : end], positions)

    def propose(self, state: State, feed: Feed, sampling: Sampling) -> tuple[Tensor, State]:
        sampling = sampling if self.noise else noiseless(sampling)
        if self.fused is not None:
            return self._fused(self.fused, state, feed, sampling), state
        c = self.params.config
        device = feed.pos.device
        state = self.take_in(state, feed)
        size = state.ring[0].k.shape[2]
        at = feed.pos + torch.arange(c.block, device=device)
        slot = torch.arange(size, device=device)
        key = feed.pos - 1 - (feed.pos - 1 - slot) % size  # the position each ring row holds
        seen = (key >= 0) & (key > at[:, None] - self.window)
        ids = torch.full_like(at, c.mask_token)
        ids[0] = feed.anchor
        x = F.embedding(ids, self.target.embed)
        hidden = net.block(self.params, state.ring, x[None], at[None], seen[None])
        hidden = hidden[0, 1 : self.rows]
        logits = net.logits(self.params, self.head.matrix, hidden, self.head.count)
        scores, best = logits.topk(c.selector_top, -1)
        best = self.head.tokens(best)
        return walk(self.params, hidden, feed.anchor, feed.pos, best, scores, sampling), state

    def _fused(self, fused: Fused, state: State, feed: Feed, sampling: Sampling) -> Tensor:
        params, embed = self.params, self.target.embed
        anchor, pos = feed.anchor, feed.pos
        hidden = dflash2_step.block(
            params, fused, state.ring, embed, feed.taps, anchor, pos, feed.count, self.window
        )
        head, drafts = self.head, self.tokens
        return dflash2_step.path(params, fused, head, hidden, drafts, anchor, pos, sampling)

    def take_in(self, state: State, feed: Feed) -> State:
        """What `propose` does to `state`: the rows that the last step verified enter the ring."""
        rows = torch.arange(feed.taps.shape[0], device=feed.pos.device)
        return self._write(state, feed.taps, feed.pos - feed.count + rows)

    def _write(self, state: State, taps: Tensor, positions: Tensor) -> State:
        known = positions.clamp(max=self.params.rope.cos.shape[0] - 1)  # rejected rows lie past it
        ops = self.fused.ops if self.fused else None
        new = net.context(self.params, taps[None], known[None], ops)
        for ring, rows in zip(state.ring, new, strict=True):
            slot = positions % ring.k.shape[2]
            ring.k.index_copy_(2, slot, rows.k)
            ring.v.index_copy_(2, slot, rows.v)
        return state


def walk(
    params: net.Params,
    hidden: Tensor,
    anchor: Tensor,
    pos: Tensor,
    best: Tensor,
    scores: Tensor,
    sampling: Sampling,
) -> Tensor:
    """The path through candidates best [rows, n] with logits scores: each token picks the next one.

    Greedy takes the best pair score; under sampling the target's own noise at that position joins
    in, which makes the draft agree with the target's draw almost as often as their laws overlap.
    BROKEN stands for a row with a score that is no finite number: `topk` and `max` pass NaN on.
    """
    s = params.selector
    return dflash_select(
        s.projection.sequence(hidden),
        s.predecessor,
        s.successor,
        best,
        scores,
        anchor,
        pos,
        sampling.temperature,
        sampling.seed,
        not sampling.greedy,
        BROKEN,
    )
