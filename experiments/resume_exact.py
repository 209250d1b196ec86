"""A turn that is taken up again against one that never paused, and in strict mode a cold one.

One conversation grows until its prompts have had every length modulo BLOCK. Before each turn the
device reads another text, and a branch leaves the conversation at its end. Turn and branch must
write what they write on a state of their own that nothing interrupts. In strict mode, prompts of
every length are read from the last whole chunk that is held, and must write what reading all of
them writes. Every other turn is sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from experiments.measure import joined_ids
from experiments.spec_exact import BLOCK, Judge
from experiments.strategies import drafting, runnable, strategies
from tr.assemble import assemble
from tr.config import Config
from tr.decode.session import Sessions
from tr.decode.step import Model, State, init_state, prefill
from tr.decode.stream import Counts, advance, begun
from tr.drafts.base import Draft
from tr.model.sampling import Sampling, sampling
from tr.report.progress import track
from tr.report.record import Outcome
from tr.tree import map_tensors

STRIDE = 11  # from one prompt's residue to the next one's, where all are asked for
BUDGET = 1 << 26  # bytes for what is held: the texts of the last turns


@dataclass
class Options:
    strategies: list[str] = field(default_factory=list)  # none given: all that draft
    kv: list[str] = field(default_factory=lambda: ["bf16", "int8"])
    residues: list[int] = field(default_factory=list)  # none given: every one
    answer_tokens: int = 6
    branch_tokens: int = 2  # written by a branch and in strict mode
    chunk_tokens: int = 64  # of a prompt in strict mode
    temperature: float = 0.8


@dataclass
class Cell:
    """What one strategy over one cache format did."""

    residues: int = 0
    differences: int = 0
    other_steps: int = 0  # turns whose text is the same, and whose steps kept other numbers
    reused_tokens: int = 0
    computed_tokens: int = 0
    branch_differences: int = 0
    strict_differences: int = 0
    strict_reused_tokens: int = 0
    strict_computed_tokens: int = 0


def run(config: Config) -> Outcome:
    o = config.options(Options)
    figures: dict[str, Any] = {}
    judge, warnings = Judge(), ()
    for kv in o.kv:
        one = replace(config, kv=replace(config.kv, format=kv))
        made = assemble(one)
        names, said = runnable(o.strategies, drafting(), made)
        warnings += made.warnings + said
        ids = joined_ids(one, made) if made.text else list(range(1, made.model.ids)) * BLOCK
        heats = [
            sampling(h, seed=config.seed, device=made.model.params.norm.device)
            for h in (0.0, o.temperature)
        ]
        figures[kv] = {}
        for name, strategy in strategies(names, one, made).items():
            job = Job(made.model, strategy.made, o, heats, ids, f"{kv}, {name}", judge)
            cell = Cell()
            grown(job, cell)
            strict(job, cell)
            figures[kv][name] = vars(cell)
    return Outcome(figures, judge.verdict, False, tuple(dict.fromkeys(warnings)))


@dataclass(frozen=True)
class Job:
    model: Model
    draft: Draft
    options: Options
    heats: Sequence[Sampling]
    ids: list[int]  # what the texts are made of
    cell: str
    judge: Judge

    @property
    def residues(self) -> list[int]:
        every = [STRIDE * i % BLOCK for i in range(BLOCK)]
        return self.options.residues or every

    def differs(self, want: Counts, got: Counts, mode: str, prompt: int) -> bool:
        where = {"cell": self.cell, "mode": mode, "prompt_tokens": prompt}
        return not self.judge.hear(want.tokens, got, where)


class Unpaused:
    """A conversation on a state of its own."""

    def __init__(self, model: Model, draft: Draft, state: State) -> None:
        self.model, self.draft, self.state = model, draft, state

    @classmethod
    def fresh(cls, model: Model, draft: Draft, ids: Sequence[int], capacity: int) -> "Unpaused":
        draft = draft.open(ids)
        with torch.inference_mode():
            return cls(model, draft, init_state(model, draft, capacity))

    def copy(self) -> "Unpaused":
        return Unpaused(self.model, self.draft, map_tensors(torch.clone, self.state))

    def turn(
        self, ids: Sequence[int], pos: int, s: Sampling, tokens: int, strict: bool = False
    ) -> Counts:
        """Read ids[pos:] and write `tokens` tokens."""
        self.draft, counts = self.draft.open(ids), Counts()
        with torch.inference_mode():
            new = torch.tensor(ids[pos:], device=s.seed.device)
            self.state = prefill(self.model, self.draft, self.state, new, s, strict)
            stream = begun(self.model, self.draft, s, self.state)
        counts.tokens.append(int(self.state.feed.anchor))
        for _ in advance(stream, counts, tokens - 1):
            pass
        self.state = stream.state
        return counts


def taken_up(
    held: Sessions, ids: Sequence[int], s: Sampling, tokens: int
) -> tuple[Counts, int, int]:
    """What a turn writes, and its reused and computed tokens."""
    turn, counts = held.open(ids, s), Counts()
    for _ in turn.answer(counts, tokens):
        pass
    return counts, turn.reused, turn.computed


def grown(job: Job, cell: Cell) -> None:
    """Turns and branches of one conversation, each after another text was read."""
    o, model = job.options, job.model
    turns = list(lengths(job.residues, o.answer_tokens))
    capacity = turns[-1] + BLOCK
    held = Sessions(model, job.draft, capacity, BUDGET)
    ids: list[int] = []
    main = Unpaused.fresh(model, job.draft, job.ids[: turns[0]], capacity)
    for n, length in enumerate(track(turns, job.cell, "turns")):
        s, at, pos = job.heats[n % 2], n * STRIDE, max(0, len(ids) - 1)
        if ids:
            other = ids + job.ids[at + 1 : at + 2 + n % 7]
            want = main.copy().turn(other, pos, s, o.branch_tokens)
            got, *_ = taken_up(held, other, s, o.branch_tokens)
            cell.branch_differences += job.differs(want, got, "branch", len(other))
        held.open(job.ids[-1 - (7 * n) % 61 :], s)
        ids = ids + job.ids[at : at + length - len(ids)]
        want = main.turn(ids, pos, s, o.answer_tokens)
        got, reused, computed = taken_up(held, ids, s, o.answer_tokens)
        assert reused == pos, "the text was let go of: what is held has too little room"
        different = job.differs(want, got, "resumed", length)
        cell.residues += 1
        cell.differences += different
        cell.other_steps += not different and want.kept != got.kept
        cell.reused_tokens += reused
        cell.computed_tokens += computed
        ids = ids + want.tokens


def strict(job: Job, cell: Cell) -> None:
    """Prompts of every length, from what is held of them and cold."""
    o = job.options
    model = replace(job.model, chunk=o.chunk_tokens)
    capacity = 2 * BLOCK
    held = Sessions(model, job.draft, capacity, BUDGET, o.chunk_tokens, strict=True)
    for n, residue in enumerate(track(job.residues, f"{job.cell}, strict", "prompts")):
        s, ids = job.heats[n % 2], job.ids[: o.chunk_tokens + residue]
        held.open(job.ids[-1 - (7 * n) % 61 :], s)
        got, reused, computed = taken_up(held, ids, s, o.branch_tokens)
        cold = Unpaused.fresh(model, job.draft, ids, capacity)
        want = cold.turn(ids, 0, s, o.branch_tokens, strict=True)
        cell.strict_differences += job.differs(want, got, "strict", len(ids))
        cell.strict_reused_tokens += reused
        cell.strict_computed_tokens += computed


def lengths(residues: Sequence[int], answer: int) -> Iterator[int]:
    """Lengths of a conversation's prompts: each has its residue, and a new token at least."""
    done = 0
    for residue in residues:
        done += 1 + (residue - done - 1) % BLOCK
        yield done
        done += answer
