"""The checkpoint's own multi-token-prediction head, chained: each guess feeds the next one.

Cache row p holds the pair (token at p, hidden at p - 1); row 0 has no pair and stays unused. A step
first rewrites the rows of the tokens that the last one verified with the target's true hiddens; the
last of those it kept yields the first draft. Then the head runs on its own output for the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kernels.registry import Ops
from kernels.sample import gumbel
from tr.drafts.base import BROKEN, Feed, Full, Seen
from tr.drafts.head import Head
from tr.model import layer, mtp, text
from tr.model.sampling import Sampling, noiseless
from tr.tree import tree


@tree
class State:
    cache: layer.State
    last: Tensor  # hidden of the last primed position [d_model]: the pair across chunks


@dataclass(frozen=True, eq=False)
class Mtp(Full):
    params: mtp.Params
    target: text.Params
    ops: Ops
    tokens: int
    head: Head
    least: int = 0  # a step drafts 2 more than the last accepted, `least` .. `tokens`; 0: tokens
    name: str = "mtp"
    taps: tuple[int, ...] = ()
    calls: int = 0  # of the head in a proposal; 0: tokens
    noise: bool = True  # sampling: draft with the target's own noise, or as if it were greedy
    fed: int = 0  # the most rows of a step that it takes in; 0: its own

    @property
    def rows(self) -> int:
        return self.tokens + 1

    @property
    def reach(self) -> int:
        return self.target.rope.cos.shape[0] - max(self.fed, self.rows) + 2

    @property
    def programs(self) -> tuple["Mtp", ...]:
        return self.chains if self.least else (self,)

    @cached_property
    def chains(self) -> tuple["Mtp", ...]:
        """This one with `least`, ... and `tokens` calls."""
        depths = range(self.least, self.tokens + 1)
        return tuple(replace(self, calls=n, name=f"{self.name} {n}") for n in depths)

    def pick(self, seen: Sequence[Seen]) -> tuple["Mtp", int]:
        if not self.least:
            return self, self.rows
        accepted = seen[-1].kept - 1 if seen else 0
        n = min(max(accepted + 2, self.least), self.tokens)
        return self.chains[n - self.least], n + 1

    def init_state(self, capacity: int) -> State:
        """The cache has room for what a chain, or the rows of a step, reach past the text."""
        allocated = text.cache_rows(capacity + max(self.fed, self.rows) - 1)
        return State(
            cache=layer.init_state(self.params.layer, allocated, self.rows),
            last=torch.zeros_like(self.target.norm),
        )

    def prime(self, state: State, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> State:
        pairs = torch.cat([state.last[None], hidden[:-1]])
        start = 1 if pos == 0 else 0
        cache = state.cache
        if len(tokens) > start:
            _, cache = mtp.prefill(
                self.params,
                cache,
                self.target.embed,
                tokens[start:],
                pairs[start:],
                pos + start,
                self.target.rope,
                self.ops,
            )
        return State(cache=cache, last=hidden[-1].clone())

    def propose(self, state: State, feed: Feed, sampling: Sampling) -> tuple[Tensor, State]:
        sampling = sampling if self.noise else noiseless(sampling)
        tokens, first = _rows(feed)
        out, cache = self._step(state.cache, tokens, feed.hidden, first)
        hidden, drafts = out.index_select(0, feed.count[None] - 1), []
        for i in range(self.calls or self.tokens):
            if i:
                token = drafts[-1].clamp(min=0)
                hidden, cache = self._step(cache, token[None], hidden, feed.pos + i)
            logits = self.head.matrix.step(hidden, self.ops)[0, : self.head.count]
            drafts.append(choose(self.head, logits, feed.pos + 1 + i, sampling))
        return torch.stack(drafts), State(cache=cache, last=state.last)

    def take_in(self, state: State, feed: Feed) -> State:
        """What `propose` does first: the rows that the last step verified, with true hiddens."""
        tokens, first = _rows(feed)
        last = feed.hidden.index_select(0, feed.count[None] - 1)[0]
        embed, rope = self.target.embed, self.target.rope
        cache = mtp.write(
            self.params, state.cache, embed, tokens, feed.hidden, first, rope, self.ops
        )
        return State(cache=cache, last=last)

    def _step(
        self, cache: layer.State, tokens: Tensor, hidden: Tensor, pos: Tensor
    ) -> tuple[Tensor, layer.State]:
        return mtp.step(
            self.params, cache, self.target.embed, tokens, hidden, pos, self.target.rope, self.ops
        )


def _rows(feed: Feed) -> tuple[Tensor, Tensor]:
    """The tokens of the pairs that the last step completed, and the first one's position.

    Rows past `count` are garbage at and past pos + 1, which the chain overwrites or the mask hides;
    a text's end may lie before them.
    """
    rows = torch.arange(len(feed.hidden), device=feed.pos.device)
    first = feed.pos - feed.count + 1
    at = (first + rows).clamp(max=len(feed.history) - 1)
    return feed.history.index_select(0, at), first


def choose(head: Head, logits: Tensor, position: Tensor, sampling: Sampling) -> Tensor:
    """A draft of the head's logits: the argmax; when sampling, with the target's noise.

    BROKEN where one of them is no finite number: `max` passes NaN on.
    """
    if not sampling.greedy:
        tokens = head.tokens(torch.arange(len(logits), device=logits.device))
        noise = gumbel(sampling.seed, position, tokens)
        logits = logits.float() / sampling.temperature + noise
    best, row = logits.max(0)
    return torch.where(best.isfinite(), head.tokens(row), BROKEN)
