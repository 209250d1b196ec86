"""The gate: every strategy, cache format and temperature writes what raw decoding writes.

Prompts are cuts of the prompt group's texts whose lengths have the given residues modulo 128, where
chunks and blocks of the operators begin and end. End tokens do not stop a text.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from experiments.dflash2_verify import divergence, replay
from experiments.measure import encode
from tr.assemble import Assembly, assemble
from tr.config import Config, LookupDraft, MtpDraft, OracleDraft, unknown
from tr.decode.generate import Counts, generate
from tr.drafts.base import Draft
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling, sampling
from tr.report.progress import track
from tr.report.record import Outcome, Verdict

BLOCK = 128
STRATEGIES = ("mtp", "dflash2", "lookup", "oracle")


@dataclass
class Options:
    strategies: list[str] = field(default_factory=lambda: list(STRATEGIES))
    kv: list[str] = field(default_factory=lambda: ["bf16", "fp8"])
    temperatures: list[float] = field(default_factory=lambda: [0.0, 0.8])
    residues: list[int] = field(default_factory=lambda: [0, 1, 63, 64, 77, 127])
    rate: float = 0.6  # at which the oracle's drafts are right


def run(config: Config) -> Outcome:
    o = config.options(Options)
    for name in o.strategies:
        if name not in STRATEGIES:
            raise ValueError(unknown("params.strategies: unknown strategy", name, STRATEGIES))
    oracle = OracleDraft(tokens=7, rate=o.rate, seed=config.seed)
    figures: dict[str, Any] = {}
    compared, first, warnings = 0, None, ()
    for kv in o.kv:
        made = assemble(replace(config, kv=replace(config.kv, format=kv)))
        warnings += made.warnings
        prompts, kept = cuts(config, made, o.residues), drafts(o, made, config)
        for heat in o.temperatures:
            cell = f"{kv}, temperature {heat:g}"
            figures[cell] = {
                name: {"tokens": 0, "steps": 0, "exact": True} for name in o.strategies
            }
            s = sampling(heat, seed=config.seed, device=made.model.params.norm.device)
            for prompt in track(prompts, cell, "prompts"):
                raw = text(made, Raw(), prompt, s, config).tokens
                for name in o.strategies:
                    draft = kept.get(name) or replay(oracle, prompt, raw, s.seed.device)
                    counts, values = text(made, draft, prompt, s, config), figures[cell][name]
                    values["tokens"] += len(raw)
                    values["steps"] += counts.steps
                    compared += len(raw)
                    if counts.tokens != raw:
                        values["exact"] = False
                        where = {"cell": cell, "strategy": name, "prompt_tokens": len(prompt)}
                        first = first or {**where, **divergence(raw, counts.tokens)}
    return Outcome(figures, Verdict(first is None, compared, first), False, warnings)


def cuts(config: Config, made: Assembly, residues: list[int]) -> list[list[int]]:
    """A prompt of BLOCK + residue tokens for each residue, from the prompts joined to one text."""
    families = config.prompts.families().values()
    ids = [i for prompts in families for p in prompts for i in encode(made.tokenizer, p)]
    found = []
    for n, residue in enumerate(residues):
        length = BLOCK + residue % BLOCK
        start = n * (len(ids) - length) // max(1, len(residues))
        found.append(ids[start : start + length])
    return found


def text(made: Assembly, draft: Draft, prompt: list[int], s: Sampling, config: Config) -> Counts:
    capacity = config.kv.capacity_tokens
    return generate(made.model, draft, prompt, s, config.max_new_tokens, (), capacity)


def drafts(o: Options, made: Assembly, config: Config) -> dict[str, Draft]:
    """The strategies that serve every prompt; dflash2 is what `config.draft` says."""
    chosen = {
        "mtp": MtpDraft(tokens=3),
        "dflash2": config.draft,
        "lookup": LookupDraft(tokens=7, ngram_min=2, ngram_max=4),
    }
    return {
        name: made.draft(replace(config, draft=chosen[name]))
        for name in o.strategies
        if name in chosen
    }
