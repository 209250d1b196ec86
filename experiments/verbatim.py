"""How much of a document comes back when the model is asked to repeat it, by cache format.

Judged by coverage, not by a symptom: `reproduced` is the share of the document's tokens that stand
in the answer in blocks of at least BLOCK equal tokens in the right order, `prefix` the share before
the first difference.
"""

from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

from experiments.measure import Job
from experiments.probes import copy_trials
from experiments.spec_exact import Judge
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.drafts.raw import Raw
from tr.progress import track
from tr.report.record import Outcome

BLOCK = 4
ROOM = 128  # tokens of a request around its document


@dataclass
class Options:
    kv: list[str] = field(default_factory=lambda: ["bf16", "fp8", "int8", "int4"])
    lengths: list[int] = field(default_factory=lambda: [200, 800])  # of the document, tokens
    trials: int = 4  # a cell
    verify: bool = True  # decode the first trial of a cell raw as well


def run(config: Config) -> Outcome:
    o = config.options(Options)
    capacity = 2 * max(o.lengths) + ROOM
    judge, said = Judge(), ()
    formats: dict[str, Any] = {}
    for kv in o.kv:
        chosen = replace(config, kv=replace(config.kv, format=kv))
        made = assemble(chosen, capacity)
        said += made.warnings
        formats[kv] = {
            str(length): cell(chosen, o, made, length, capacity, judge) for length in o.lengths
        }
    verdict = judge.verdict if o.verify else None
    return Outcome({"formats": formats}, verdict, False, tuple(dict.fromkeys(said)))


def cell(
    config: Config, o: Options, made: Assembly, length: int, capacity: int, judge: Judge
) -> dict[str, float | None]:
    """Means over the trials at one length."""
    tokenizer, draft = made.tokenizer, made.draft(config)
    trials = copy_trials(tokenizer.full, o.trials, length)
    kept, steps, shares = 0, 0, []
    for i, trial in enumerate(track(trials, f"{config.kv.format}: {length} tokens", "trials")):
        document = tokenizer.encode(trial.answer)
        message = {"role": "user", "content": trial.prompt}
        prompt = tokenizer.chat([message], enable_thinking=False)
        job = Job(made, draft, sampling_of(config), len(document) + 1, capacity)
        counts = job.run(prompt)
        shares.append(coverage(document, counts.tokens))
        kept, steps = kept + sum(counts.kept), steps + counts.steps
        if o.verify and i == 0:
            where = {"kv": config.kv.format, "tokens": length}
            judge.hear(job.run(prompt, Raw()).tokens, counts, where)
    reproduced, prefix = zip(*shares, strict=True)
    return {
        "reproduced": sum(reproduced) / len(trials),
        "prefix": sum(prefix) / len(trials),
        "tokens_per_step": kept / steps if steps else None,
    }


def coverage(document: list[int], answer: list[int]) -> tuple[float, float]:
    """The shares of `document` that `answer` reproduces: in blocks, and up to a difference."""
    blocks = SequenceMatcher(None, document, answer, autojunk=False).get_matching_blocks()
    found = sum(b.size for b in blocks if b.size >= min(BLOCK, len(document)))
    pairs = zip(document, answer, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(document), len(answer)))
    return found / len(document), same / len(document)
