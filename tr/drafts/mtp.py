"""The checkpoint's own multi-token-prediction head, chained: each guess feeds the next one.

Cache row p holds the pair (token at p, hidden at p - 1); row 0 has no pair and stays unused. A step
first rewrites the rows of the tokens that the last one verified with the target's true hiddens; the
last of those it kept yields the first draft. Then the head runs on its own output for the others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.registry import Ops
from kernels.sample import gumbel
from tr.drafts.base import Feed, Full
from tr.model import layer, mtp, text
from tr.model.sampling import Sampling
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
    ids: int  # real tokens; the matrix's padding rows are never drafted
    name: str = "mtp"
    taps: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.tokens + 1

    @property
    def reach(self) -> int:
        return self.target.rope.cos.shape[0] - self.tokens + 1

    def init_state(self, capacity: int) -> State:
        """The chain runs up to `tokens` positions past the text: the cache has room for them."""
        allocated = text.cache_rows(capacity + self.tokens)
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
            )
        return State(cache=cache, last=hidden[-1].clone())

    def propose(self, state: State, feed: Feed, sampling: Sampling) -> tuple[Tensor, State]:
        rows = torch.arange(len(feed.hidden), device=feed.pos.device)
        first = feed.pos - feed.count + 1
        # rows past `count` are garbage at and past pos + 1, which the chain overwrites or the mask
        # hides; a text's end may lie before them
        at = (first + rows).clamp(max=len(feed.history) - 1)
        out, cache = self._step(state.cache, feed.history.index_select(0, at), feed.hidden, first)
        hidden, drafts = out.index_select(0, feed.count[None] - 1), []
        for i in range(self.tokens):
            if i:
                hidden, cache = self._step(cache, drafts[-1][None], hidden, feed.pos + i)
            logits = self.target.head.step(hidden, self.ops)[0, : self.ids]
            drafts.append(choose(logits, feed.pos + 1 + i, sampling))
        return torch.stack(drafts), State(cache=cache, last=state.last)

    def _step(
        self, cache: layer.State, tokens: Tensor, hidden: Tensor, pos: Tensor
    ) -> tuple[Tensor, layer.State]:
        return mtp.step(
            self.params, cache, self.target.embed, tokens, hidden, pos, self.target.rope, self.ops
        )


def choose(logits: Tensor, position: Tensor, sampling: Sampling) -> Tensor:
    """A draft of logits [n]: the argmax; under sampling the winner with the target's noise."""
    if sampling.greedy:
        return logits.argmax()
    tokens = torch.arange(len(logits), device=logits.device)
    noise = gumbel(sampling.seed, position, tokens)
    return (logits.float() / sampling.temperature + noise).argmax()
