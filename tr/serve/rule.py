"""What a request asks of each token: a least length, a thought of bounded length, a grammar."""

from collections.abc import Sequence

import torch
from jaxtyping import Int32
from torch import Tensor

from tr.checkpoint.tokenizer import Tokenizer
from tr.decode.rule import BITS, mask_of, mask_without
from tr.serve.grammar import Grammars, Matcher
from tr.serve.job import Request

THOUGHT_ENDS = "</think>"
CLOSING = f"\n{THOUGHT_ENDS}\n\n"  # as the template writes it


class Conditions:
    """A `tr.decode.rule.Rule` over `ids` tokens.

    End tokens `eos` come after `least` others at the earliest. A thought that is open ends with the
    id `mark`; after `budget` tokens `closing` is put there, whatever the model would say. Behind it
    `matcher` says what follows, `gap` first if the model writes it. A thought before a matcher does
    not end the answer; a matcher that is done does, whatever `least` says.
    """

    def __init__(
        self,
        ids: int,
        eos: Sequence[int] = (),
        least: int = 0,
        matcher: Matcher | None = None,
        thinking: bool = False,
        mark: int = -1,
        budget: int | None = None,
        closing: Sequence[int] = (),
        gap: Sequence[int] = (),
    ) -> None:
        self._ids, self._eos, self._least, self._matcher = ids, frozenset(eos), least, matcher
        self._thinking, self._mark, self._budget = thinking, mark, budget
        self._closing, self._after = list(closing), list(gap)
        self._count = 0
        self._forced: list[int] = []  # these follow, whatever else
        self._gap: list[int] = []  # these may follow instead of what the matcher allows
        self._force()

    @property
    def done(self) -> bool:
        m = self._matcher
        return m is not None and not self._thinking and not self._forced and m.done

    def push(self, token: int) -> bool:
        if not self._allows(token):
            return False
        self._count += 1
        if self._forced and token == self._forced[0]:
            del self._forced[0]
            self._thinking = self._thinking and token != self._mark
        elif self._thinking:
            self._forced = []
            if token == self._mark:
                self._thinking, self._gap = False, self._after
        elif self._gap and token == self._gap[0]:
            self._gap = self._gap[1:]
        elif self._matcher is not None:
            self._gap = []
            self._matcher.accept(token)
        self._force()
        return True

    def mask(self) -> Int32[Tensor, " words"]:
        if self._forced:
            return mask_of(self._forced[:1], self._ids)
        if self._thinking or self._matcher is None:
            found = torch.full((-(-self._ids // BITS),), -1, dtype=torch.int32)
        else:
            found = self._matcher.mask() | mask_of(self._gap[:1], self._ids)
        if self._no_end():
            others = mask_without(found, self._eos)
            found = others if others.any() else found
        return found

    def _allows(self, token: int) -> bool:
        if self._forced:
            whole = len(self._forced) == len(self._closing)
            return token == self._forced[0] or (whole and token == self._mark)
        if token in self._eos and self._no_end():
            return not mask_without(self.mask(), self._eos).any()
        if self._thinking or self._matcher is None or token in self._gap[:1]:
            return True
        return self._matcher.allows(token)

    def _no_end(self) -> bool:
        """Whether an end token would come too early."""
        return self._count < self._least or (self._thinking and self._matcher is not None)

    def _force(self) -> None:
        if self._thinking and not self._forced and self._budget is not None:
            self._forced = list(self._closing) if self._count >= self._budget else []


def conditions(
    request: Request, tokenizer: Tokenizer, eos: Sequence[int], grammars: Grammars
) -> Conditions | None:
    """What `request` asks of each token, None where that is nothing; `eos` are its end tokens.

    Raises ValueError naming the field that cannot be kept to.
    """
    r, matcher = request, None
    if r.constraint is not None:
        matcher = grammars.matcher(r.constraint, r.tools, r.parallel_tool_calls)
    bounded = r.thinking and r.thinking_budget is not None
    if matcher is None and not bounded and not (r.min_tokens and eos):
        return None
    mark = tokenizer.control.get(THOUGHT_ENDS)
    if r.thinking and mark is None and (matcher or bounded):
        field = "thinking_budget" if bounded else "constraint"
        raise ValueError(f"{field}: the tokenizer has no {THOUGHT_ENDS}, so no thought ends")
    return Conditions(
        tokenizer.count,
        eos,
        r.min_tokens,
        matcher,
        r.thinking and mark is not None,
        -1 if mark is None else mark,
        r.thinking_budget,
        tokenizer.encode(CLOSING, special=True),
        tokenizer.encode(CLOSING.partition(THOUGHT_ENDS)[2]),
    )
