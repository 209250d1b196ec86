"""A turn that is taken up again against one that never paused, and in strict mode a cold one.

Two conversations grow by turns until their prompts have had every length modulo BLOCK, so that
before each turn the device has read another text; then a branch leaves that turn's end. Turn and
branch must write what they write on a state of their own that nothing interrupts. Where all
residues are asked for, a turn has few enough tokens to be read as rows of steps; a branch has more.
In strict mode, prompts of every length, of two texts by turns, are read from the last whole chunk
that is held, and must write what reading all of them writes. Every other turn of a text is sampled.

Strategies over cache formats are independent of each other: `processes` may share them out.
"""

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from experiments.measure import joined_ids
from experiments.spec_exact import BLOCK, Judge
from experiments.strategies import drafting, runnable, strategies
from tr.assemble import assemble
from tr.config import Config
from tr.decode.session import Sessions
from tr.decode.step import SHORT, Model, State, init_state, prefill
from tr.decode.stream import Counts, advance, begun
from tr.drafts.base import Draft
from tr.model.sampling import Sampling, sampling
from tr.progress import track
from tr.report.record import Outcome
from tr.tree import map_tensors, unchecked

STRIDE = 27  # from one prompt's residue to the next one's, where all are asked for
OPENING = 5  # tokens of what each conversation begins with
BUDGET = 1 << 28  # bytes for what is held: the texts of the last turns


@dataclass
class Options:
    strategies: list[str] = field(default_factory=list)  # none given: all that draft
    kv: list[str] = field(default_factory=lambda: ["bf16", "int8"])
    residues: list[int] = field(default_factory=list)  # none given: every one
    answer_tokens: int = 4
    branch_tokens: int = 2  # written by a branch and in strict mode
    chunk_tokens: int = 64  # of a prompt in strict mode
    temperature: float = 0.8
    processes: int = 1  # more: each has `threads` of its own

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ValueError(f"params.processes: expected at least 1, got {self.processes}")


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


@dataclass(frozen=True)
class Part:
    """Strategies over one cache format: those asked for, or of `default` those that can run."""

    config: Config
    asked: list[str]
    default: list[str]


@dataclass(frozen=True)
class Found:
    cells: dict[str, Cell]
    judge: Judge
    warnings: tuple[str, ...]


def run(config: Config) -> Outcome:
    o = config.options(Options)
    every = drafting()
    shares = [(o.strategies, every)]
    if o.processes > 1:
        shares = [([name] * bool(o.strategies), [name]) for name in o.strategies or every]
    parts = [
        Part(replace(config, kv=replace(config.kv, format=kv)), *share)
        for kv in o.kv
        for share in shares
    ]
    figures: dict[str, Any] = {kv: {} for kv in o.kv}
    judge, warnings = Judge(), ()
    for part, found in zip(track(parts, "resume_exact", "parts"), results(parts, o), strict=True):
        figures[part.config.kv.format] |= {name: vars(cell) for name, cell in found.cells.items()}
        judge.compared += found.judge.compared
        judge.first = judge.first or found.judge.first
        warnings += found.warnings
    return Outcome(figures, judge.verdict, False, tuple(dict.fromkeys(warnings)))


def results(parts: Sequence[Part], o: Options) -> Iterator[Found]:
    """Of all parts, in order."""
    if o.processes == 1:
        yield from map(compare, parts)
        return
    context, threads = multiprocessing.get_context("spawn"), (torch.get_num_threads(),)
    with context.Pool(o.processes, torch.set_num_threads, threads) as pool:
        yield from pool.imap(compare, parts)


def compare(part: Part) -> Found:
    config, o, judge = part.config, part.config.options(Options), Judge()
    made = assemble(config)
    names, said = runnable(part.asked, part.default, made)
    ids = joined_ids(config, made) if made.text else list(range(1, made.model.ids)) * BLOCK
    heats = [
        sampling(h, seed=config.seed, device=made.model.params.norm.device)
        for h in (0.0, o.temperature)
    ]
    cells: dict[str, Cell] = {}
    for name, strategy in strategies(names, config, made).items():
        job = Job(made.model, strategy.made, o, heats, ids, f"{config.kv.format}, {name}", judge)
        cells[name] = Cell()
        with unchecked():
            grown(job, cells[name])
            strict(job, cells[name])
    return Found(cells, judge, made.warnings + said)


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

    @property
    def shares(self) -> tuple[list[int], list[int]]:
        """The residues of two texts."""
        half = -(-len(self.residues) // 2)
        return self.residues[:half], self.residues[half:]

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
            self.state = prefill(
                self.model, self.draft, self.state, new, s, strict, turn=not strict
            )
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


class Talk:
    """A conversation, and the same one on a state of its own that nothing interrupts."""

    def __init__(self, job: Job, held: Sessions, start: int, lengths: list[int]) -> None:
        self.job, self.held, self.lengths = job, held, lengths
        self.ids = job.ids[start : start + OPENING]
        self.main = Unpaused.fresh(job.model, job.draft, self.ids, held.capacity)
        self.said(0, job.heats[0])

    def said(self, pos: int, s: Sampling) -> tuple[Counts, Counts, int, int]:
        """A turn of both: what they write, and the tokens that were reused and computed."""
        tokens = self.job.options.answer_tokens
        want = self.main.turn(self.ids, pos, s, tokens)
        got, reused, computed = taken_up(self.held, self.ids, s, tokens)
        assert reused == pos, "the text was let go of: what is held has too little room"
        self.ids = self.ids + want.tokens
        return want, got, reused, computed

    def turn(self, n: int, s: Sampling, cell: Cell) -> None:
        """The next prompt and its answer."""
        pos, length, at = len(self.ids) - 1, self.lengths.pop(0), n * STRIDE
        self.ids = self.ids + self.job.ids[at : at + length - len(self.ids)]
        want, got, reused, computed = self.said(pos, s)
        different = self.job.differs(want, got, "resumed", length)
        cell.residues += 1
        cell.differences += different
        cell.other_steps += not different and want.kept != got.kept
        cell.reused_tokens += reused
        cell.computed_tokens += computed

    def branch(self, n: int, s: Sampling, cell: Cell) -> None:
        """Another prompt from here, which the conversation does not go on with."""
        pos, at, tokens = len(self.ids) - 1, n * STRIDE, self.job.options.branch_tokens
        other = self.ids + self.job.ids[at + 1 : at + SHORT + 1 + n % 7]
        want = self.main.copy().turn(other, pos, s, tokens)
        got, *_ = taken_up(self.held, other, s, tokens)
        cell.branch_differences += self.job.differs(want, got, "branch", len(other))


def grown(job: Job, cell: Cell) -> None:
    """Turns of two conversations, one after the other, and a branch behind each."""
    start = OPENING + job.options.answer_tokens
    prompts = [list(lengths(share, job.options.answer_tokens, start)) for share in job.shares]
    capacity = max(x[-1] for x in prompts if x) + BLOCK
    held = Sessions(job.model, job.draft, capacity, BUDGET)
    talks = [Talk(job, held, OPENING * i, x) for i, x in enumerate(prompts)]
    for n in range(len(job.residues)):
        talk, s = talks[n % 2], job.heats[n // 2 % 2]
        talk.turn(n, s, cell)
        talk.branch(n, s, cell)


def strict(job: Job, cell: Cell) -> None:
    """Prompts of every length of two texts, from what is held of them and cold."""
    o = job.options
    model = replace(job.model, chunk=o.chunk_tokens)
    capacity = 2 * BLOCK
    held = Sessions(model, job.draft, capacity, BUDGET, o.chunk_tokens, strict=True)
    longest = o.chunk_tokens + BLOCK
    texts = [job.ids[i * longest : (i + 1) * longest] for i in range(2)]
    for text in texts:
        held.open(text, job.heats[0])
    for n in range(len(job.residues)):
        residue = job.shares[n % 2][n // 2]
        s, ids = job.heats[n // 2 % 2], texts[n % 2][: o.chunk_tokens + residue]
        got, reused, computed = taken_up(held, ids, s, o.branch_tokens)
        cold = Unpaused.fresh(model, job.draft, ids, capacity)
        want = cold.turn(ids, 0, s, o.branch_tokens, strict=True)
        cell.strict_differences += job.differs(want, got, "strict", len(ids))
        cell.strict_reused_tokens += reused
        cell.strict_computed_tokens += computed


def lengths(residues: Iterable[int], answer: int, done: int = 0) -> Iterator[int]:
    """Lengths of a conversation's prompts behind `done` tokens: each has its residue, and a new
    token at least.
    """
    for residue in residues:
        done += 1 + (residue - done - 1) % BLOCK
        yield done
        done += answer
