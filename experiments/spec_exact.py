"""The gate: every strategy, cache format and temperature writes what raw decoding writes.

Prompts are cuts of the prompt group's texts (of random ids, for a random model) whose lengths have
the given residues modulo BLOCK, where chunks and blocks of the operators begin and end. Then every
residue is swept, one prompt length after another, by a few strategies with shorter texts. The
oracles replay raw decoding's text with errors. End tokens do not stop a text.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.dflash2_verify import divergence
from experiments.measure import joined_ids
from experiments.strategies import ORACLES, Strategy, drafting, runnable, strategies
from tr.assemble import Assembly, assemble
from tr.config import Config
from tr.decode.generate import generate
from tr.decode.stream import Counts
from tr.drafts.base import Draft
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.progress import track
from tr.report.record import Outcome, Verdict

BLOCK = 128
EVERY = (*drafting(), *ORACLES)


@dataclass
class Options:
    strategies: list[str] = field(default_factory=list)  # none given: EVERY
    kv: list[str] = field(default_factory=lambda: ["bf16", "fp8"])
    temperatures: list[float] = field(default_factory=lambda: [0.0, 0.8])
    residues: list[int] = field(default_factory=lambda: [0, 1, 77, 127])
    sweep: list[str] = field(default_factory=lambda: ["mtp", "dflash2"])  # through every residue
    sweep_tokens: int = 16  # a prompt of the sweep; 0: no sweep


@dataclass
class Judge:
    """What was compared so far, and the first difference."""

    compared: int = 0
    first: dict[str, Any] | None = None

    def hear(self, raw: list[int], counts: Counts, where: dict[str, Any]) -> bool:
        """Whether a strategy wrote what raw decoding wrote."""
        self.compared += len(raw)
        if counts.tokens == raw:
            return True
        self.first = self.first or {**where, **divergence(raw, counts.tokens)}
        return False

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.first is None, self.compared, self.first)


def run(config: Config) -> Outcome:
    o = config.options(Options)
    figures: dict[str, Any] = {}
    judge, warnings = Judge(), ()
    for kv in o.kv:
        warnings += cells(replace(config, kv=replace(config.kv, format=kv)), o, judge, figures)
    return Outcome(figures, judge.verdict, False, tuple(dict.fromkeys(warnings)))


def cells(config: Config, o: Options, judge: Judge, figures: dict[str, Any]) -> tuple[str, ...]:
    """Fill in the cells of one cache format; what the record must warn of."""
    made, kv = assemble(config), config.kv.format
    names, said = runnable(o.strategies, EVERY, made)
    sweep = o.sweep if o.sweep_tokens and kv == o.kv[0] else []
    kept = strategies([*names, *sweep], config, made)
    capacity = 2 * BLOCK + max(config.max_new_tokens, o.sweep_tokens)  # one: states of one shape
    prompts = cuts(config, made, o.residues)
    for heat in o.temperatures:
        job = Writer(made, heat, config.max_new_tokens, capacity, config.seed)
        cell, some = f"{kv}, temperature {heat:g}", {name: kept[name] for name in names}
        figures[cell] = gate(job, some, prompts, cell, judge)
    if sweep:
        heat = o.temperatures[0]
        job = Writer(made, heat, o.sweep_tokens, capacity, config.seed)
        cell, some = f"every residue, {kv}, temperature {heat:g}", {n: kept[n] for n in sweep}
        figures[cell] = gate(job, some, cuts(config, made, list(range(BLOCK))), cell, judge)
    return made.warnings + said


class Writer:
    """Writes texts of one length at one temperature; no end token stops them."""

    def __init__(self, made: Assembly, heat: float, tokens: int, capacity: int, seed: int) -> None:
        self.model, self.tokens, self.capacity = made.model, tokens, capacity
        self.device = made.model.params.norm.device
        self.sampling = sampling(heat, seed=seed, device=self.device)

    def __call__(self, draft: Draft, prompt: list[int]) -> Counts:
        return generate(self.model, draft, prompt, self.sampling, self.tokens, (), self.capacity)


def gate(
    write: Writer, kept: dict[str, Strategy], prompts: list[list[int]], cell: str, judge: Judge
) -> dict[str, dict[str, Any]]:
    """Every prompt by raw decoding and by every strategy."""
    figures: dict[str, dict[str, Any]] = {
        name: {"tokens": 0, "steps": 0, "exact": True} for name in ("raw", *kept)
    }
    found: set[int] = set()
    for prompt in track(prompts, cell, "prompts"):
        plain = write(Raw(), prompt)
        raw = plain.tokens
        found.update(raw)
        runs = {"raw": plain}
        for name, strategy in kept.items():
            runs[name] = write(strategy.draft(prompt, raw, write.device), prompt)
            where = {"cell": cell, "strategy": name, "prompt_tokens": len(prompt)}
            figures[name]["exact"] &= judge.hear(raw, runs[name], where)
        for name, counts in runs.items():
            figures[name]["tokens"] += len(raw)
            figures[name]["steps"] += counts.steps
    figures["raw"] |= {"distinct_tokens": len(found)}  # few: the texts loop, and prove less
    return figures


def cuts(config: Config, made: Assembly, residues: list[int]) -> list[list[int]]:
    """A prompt of BLOCK + residue tokens for each residue, from the prompts joined to one text."""
    if made.text is None:
        ids = random.Random(config.seed).choices(range(made.model.ids), k=8 * BLOCK)
    else:
        ids = joined_ids(config, made)
    found = []
    for n, residue in enumerate(residues):
        length = BLOCK + residue % BLOCK
        start = n * (len(ids) - length) // max(1, len(residues))
        found.append(ids[start : start + length])
    return found
