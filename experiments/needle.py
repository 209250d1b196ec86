"""A fact hidden in a long text at a known depth, asked for at its end, by cache format.

A trial passes where the answer that decoding writes contains the fact's value. Needles alone are
easy; the depths tell where a format begins to lose. The verdict compares raw decoding with the
run's draft on the first trial of each cell.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from experiments.measure import Job
from experiments.probes import needle_trials
from experiments.spec_exact import Judge
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.drafts.raw import Raw
from tr.progress import track
from tr.report.record import Outcome

ANSWER = 48  # tokens an answer may have


@dataclass
class Options:
    kv: list[str] = field(default_factory=lambda: ["bf16", "fp8", "int8", "int4"])
    lengths: list[int] = field(default_factory=lambda: [2048, 8192])  # with the answer's room
    depths: list[float] = field(default_factory=lambda: [0.1, 0.5, 0.9])
    trials: int = 4  # a cell
    verify: bool = True  # decode the first trial of a cell raw as well


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if not all(0 <= depth <= 1 for depth in o.depths):
        raise ValueError(f"params.depths: expected 0 .. 1, got {o.depths}")
    if min(o.lengths) <= 4 * ANSWER:
        raise ValueError(f"params.lengths: expected more than {4 * ANSWER}, got {o.lengths}")
    judge, said = Judge(), ()
    formats: dict[str, Any] = {}
    for kv in o.kv:
        chosen = replace(config, kv=replace(config.kv, format=kv))
        made = assemble(chosen, max(o.lengths))
        said += made.warnings
        formats[kv] = {str(length): cells(chosen, o, made, length, judge) for length in o.lengths}
    verdict = judge.verdict if o.verify else None
    return Outcome({"formats": formats}, verdict, False, tuple(dict.fromkeys(said)))


def cells(
    config: Config, o: Options, made: Assembly, length: int, judge: Judge
) -> dict[str, float]:
    """The share of trials that pass, over all depths and at each of them."""
    draft, sampling = made.draft(config), sampling_of(config)
    job = Job(made, draft, sampling, ANSWER, length)
    found = {depth: 0 for depth in o.depths}
    places = [(depth, i) for depth in o.depths for i in range(o.trials)]
    for depth, i in track(places, f"{config.kv.format}: {length} tokens", "trials"):
        trial = needle_trials(made.tokenizer.full, 1, length - 2 * ANSWER, i, depth)[0]
        message = {"role": "user", "content": trial.prompt}
        prompt = made.tokenizer.chat([message], enable_thinking=False)
        counts = job.run(prompt)
        found[depth] += trial.passed(made.tokenizer.decode(counts.tokens))
        if o.verify and i == 0:
            raw = job.run(prompt, Raw()).tokens
            where = {"kv": config.kv.format, "tokens": length, "depth": depth}
            judge.hear(raw, counts, where)
    shares = {f"depth_{depth:g}": n / o.trials for depth, n in found.items()}
    return {"found": sum(found.values()) / len(places), **shares}
