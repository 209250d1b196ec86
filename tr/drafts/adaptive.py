"""Each step runs what it is worth: the tokens that a program may keep, over what its step costs.

Programs are the draft's own and a copied step, all over one state, so that going from one to
another costs nothing. What they may keep is estimated from the text and the steps that the host has
read, never from time: the same text takes the same steps. A block or a chain goes on while its
drafts are right, each at the conversation's rate so far; a copied step likewise, at the rate of
matches as long as the present one.

A second draft, the rival, may begin beside the main one: its state keeps current while the main
one's rate becomes known. Then the one that is worth more stays, and the other is let go of, which
cannot be undone: while a main one whose drafts were tried is little better, both go on.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tr.drafts.base import MISSING, Draft, Feed, Seen
from tr.drafts.dflash2_lookup import Dflash2Lookup
from tr.drafts.joint import Copy, Joint, Over, Within
from tr.drafts.mtp import Mtp
from tr.drafts.past import Past, Rate
from tr.model.sampling import Sampling

# Before a conversation has shown its own: what texts of the embedded model gave, to prompts past
# the first two of each family.
MATCHED = ((0, 0.55), (4, 0.75), (8, 0.88), (16, 0.94))  # the next token, by a match's length
RIGHT, RIVAL = 0.66, 0.65  # a draft of the main one, of the rival, all before it right
TAIL = 2.0  # tokens kept behind a block that was right to its end
STEP, KEEP_STEP = 3.0, 0.8  # tokens kept by a step, and how much of it is kept with every step
DRAFTS, BLOCKS = 12.0, 2.0  # as many seen ones weigh the same
KEEP = 0.98  # of what was seen, with every draft more

TRIAL = 12  # drafts of the main one, right or the first wrong one, that a rival waits for
STEPS = 6  # of any kind that it waits for at most
CLEAR = 1.2  # times the rival's worth: with as much the main one is clearly better


@dataclass(frozen=True)
class Costs:
    """What a step costs, in raw ones: by its draft, or a copied one by its rows."""

    dflash2: float
    dflash2_lookup: float
    mtp: float
    copy: tuple[tuple[int, float], ...]

    def of(self, draft: Draft) -> float:
        if isinstance(draft, Dflash2Lookup):
            return self.dflash2_lookup
        return self.mtp if isinstance(draft, Mtp) else self.dflash2


@dataclass(frozen=True, eq=False)
class Option:
    """A program, the draft that it runs, how many drafts this gives, and what a step costs."""

    program: Over
    rows: int
    drafts: int
    cost: float

    @property
    def tail(self) -> bool:
        return self.rows > self.drafts + 1


@dataclass(frozen=True, eq=False)
class Phase:
    """What may run while the drafts of `joint.kept` are kept current."""

    copy: Copy
    options: tuple[Option, ...]


@dataclass(frozen=True, eq=False)
class Adaptive(Within):
    """`main` and, where there is one, `rival`: drafts that can take in what others drafted."""

    main: Draft
    rival: Draft | None
    costs: Costs
    late: bool  # whether a step may be running that `pick` has not seen
    ngram_min: int
    ngram_max: int
    name: str = "adaptive"

    @property
    def rows(self) -> int:
        copied = max(rows for rows, _ in self.costs.copy)
        return max(copied, *(draft.rows for draft in (self.main, self.rival) if draft))

    @cached_property
    def drafts(self) -> tuple[Draft, ...]:
        both = [draft for draft in (self.main, self.rival) if draft]
        fed = (dataclasses.replace(d, fed=self.rows) if isinstance(d, Mtp) else d for d in both)
        return tuple(fed)

    @cached_property
    def of(self) -> Joint:
        return self._joint(*range(len(self.drafts)))

    @cached_property
    def trial(self) -> Phase | None:
        """Both drafts are kept; the main one runs, without a tail."""
        if self.rival is None:
            return None
        phase = self._phase(0, self.of)
        return Phase(phase.copy, tuple(o for o in phase.options if not o.tail))

    @cached_property
    def alone(self) -> tuple[Phase, ...]:
        """Each draft by itself."""
        return tuple(self._phase(i, self._joint(i)) for i in range(len(self.drafts)))

    @property
    def programs(self) -> tuple[Draft, ...]:
        phases = [*([self.trial] if self.trial else []), *self.alone]
        return tuple(p for one in phases for p in (one.copy, *(o.program for o in one.options)))

    def open(self, prompt: Sequence[int]) -> "Conversation":
        return Conversation(self, tuple(prompt), self.trial or self.alone[0])

    def pick(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        return self.open(()).pick(seen)

    def propose(self, state: Any, feed: Feed, sampling: Sampling) -> tuple[Tensor, Any]:
        """The main draft's, both kept; `pick` gives programs that do less."""
        main = Over(self.of, self.drafts[0], 0, self.name)
        drafts, state = main.propose(state, feed, sampling)
        return F.pad(drafts, (0, self.rows - 1 - len(drafts)), value=MISSING), state

    def _joint(self, *kept: int) -> Joint:
        return Joint(self.drafts, kept)  # type: ignore[arg-type]

    def _phase(self, at: int, joint: Joint) -> Phase:
        draft = self.drafts[at]
        names = {i: f" + {self.drafts[i].name}" for i in joint.kept}
        others = "".join(name for i, name in names.items() if i != at)
        options = []
        for runs in (draft.block, draft) if isinstance(draft, Dflash2Lookup) else draft.programs:
            rows = (runs.calls or runs.tokens) + 1 if isinstance(runs, Mtp) else runs.rows
            drafts = (runs.block.rows if isinstance(runs, Dflash2Lookup) else rows) - 1
            program = Over(joint, runs, at, f"{runs.name}{others}")
            options.append(Option(program, rows, drafts, self.costs.of(runs)))
        most = max(rows for rows, _ in self.costs.copy)
        copy = Copy(joint, most, self.ngram_min, self.ngram_max, f"copy{''.join(names.values())}")
        return Phase(copy, tuple(options))


@dataclass(frozen=True, eq=False)
class Conversation(Within):
    """`of` for the text that begins with `prompt`; `phase`: with which it begins."""

    of: Adaptive
    prompt: tuple[int, ...]
    phase: Phase

    def open(self, prompt: Sequence[int]) -> "Conversation":
        """Stays with the draft that was chosen: the other one's state has fallen behind."""
        return Conversation(self.of, tuple(prompt), self._views[0].phase)

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def rows(self) -> int:
        return self.of.rows

    @property
    def programs(self) -> tuple[Draft, ...]:
        return self.of.programs

    def propose(self, state: Any, feed: Feed, sampling: Sampling) -> tuple[Tensor, Any]:
        return self.of.propose(state, feed, sampling)

    @cached_property
    def _views(self) -> list["View"]:
        """The one of the last call, which the next one goes on from."""
        return [View(self.of, self.prompt, self.phase)]

    def pick(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        (view,) = self._views
        if not view.began(seen):
            view = View(self.of, self.prompt, self.phase)
        for step in seen[view.steps :]:
            view.add(step)
        self._views[:] = [view]
        return view.best(seen)


class View:
    """What a conversation's steps say: its text, its drafts' rates, and which draft it stays with.

    `steps` of them were taken in.
    """

    def __init__(self, adaptive: Adaptive, prompt: Sequence[int], phase: Phase) -> None:
        a = self._of = adaptive
        self.steps, self.phase = 0, phase
        self._last: Seen | None = None
        self._past = Past(prompt, a.ngram_min, a.ngram_max, MATCHED, DRAFTS, KEEP)
        self._rates = [Rate(share, DRAFTS, KEEP) for share in (RIGHT, RIVAL)]
        self._tail = Rate(TAIL, BLOCKS, KEEP)
        self._kept = Rate(STEP, BLOCKS, KEEP_STEP)
        self._waited = self._tried = 0
        phases = [*a.alone, *([a.trial] if a.trial else [])]
        self._ran = {o.program.name: o for phase in phases for o in phase.options}

    def began(self, seen: Sequence[Seen]) -> bool:
        """Whether the steps taken in are the first of `seen`."""
        return len(seen) >= self.steps and (not self.steps or seen[self.steps - 1] is self._last)

    def add(self, step: Seen) -> None:
        for token in step.tokens:
            self._past.add(token)
        option, right = self._ran.get(step.ran), step.kept - 1
        if option:
            drafts = min(option.drafts, step.rows - 1)
            tried = min(right + 1, drafts)
            self._rates[option.program.at].add(min(right, drafts), tried)
            self._tried += tried
            if option.tail and right >= drafts:
                self._tail.add(right - drafts)
        if step.ran:
            self._waited += 1
            self._kept.add(step.kept)
        self.steps, self._last = self.steps + 1, step
        if self.phase is self._of.trial and (self._tried >= TRIAL or self._waited >= STEPS):
            main, rival = (max(map(self._worth, phase.options)) for phase in self._of.alone)
            if main < rival:
                self.phase = self._of.alone[1]
            elif main >= CLEAR * rival or self._tried < TRIAL:
                self.phase = self._of.alone[0]

    def best(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        """What is worth most: a program and its rows; the first among equals."""
        found: list[tuple[float, Draft, int]]
        found = [(self._worth(o), o.program, o.rows) for o in self._own(seen)]
        ahead = round(self._kept.value) if self._of.late else 0
        for rows, cost in self._of.costs.copy:
            found.append(((1 + self._past.expected(rows - 1, ahead)) / cost, self.phase.copy, rows))
        _, program, rows = max(found, key=lambda one: one[0])
        return program, rows

    def _own(self, seen: Sequence[Seen]) -> list[Option]:
        """The draft's programs; of a chain, the one whose length it picks itself."""
        options = self.phase.options
        draft = self._of.drafts[options[0].program.at]
        if not isinstance(draft, Mtp):
            return list(options)
        picked, _ = draft.pick(seen)
        return [o for o in options if o.program.runs is picked]

    def _worth(self, option: Option) -> float:
        """Tokens that a step of it may keep, over its cost."""
        share = self._rates[option.program.at].value
        kept = sum(share**i for i in range(option.drafts + 1))
        if option.tail:
            kept += share**option.drafts * self._tail.value
        return kept / option.cost
