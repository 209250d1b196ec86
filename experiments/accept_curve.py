"""Acceptance against the context's length and the place in the text where it was cut.

Contexts of each length are cut from one long text at evenly spread places and continued by raw
decoding and by every strategy, with the run's `sampling`. Steps count up to where a continuation
repeats itself.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from experiments.dflash2_verify import divergence
from experiments.measure import Job, Tally, joined_ids, loop_start
from experiments.probes import heldout_texts
from experiments.strategies import strategies
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config, check_choice
from tr.progress import track
from tr.report.record import Outcome, Verdict

KINDS = ("prose", "code", "chinese")  # of held-out text


@dataclass
class Options:
    strategies: list[str] = field(default_factory=lambda: ["mtp", "dflash2"])
    lengths: list[int] = field(default_factory=lambda: [128, 512, 1024, 2048, 4096])
    positions: int = 6  # of each length
    text: str = "prose"  # a kind of held-out text, or `prompts`: those of the group, joined


def run(config: Config) -> Outcome:
    o = config.options(Options)
    check_choice("params.text", o.text, (*KINDS, "prompts"))
    if o.positions < 1 or not o.lengths or min(o.lengths) < 1:
        raise ValueError("params.positions and params.lengths must be positive")
    capacity = max(o.lengths) + config.max_new_tokens
    made = replace(assemble(config, capacity), eos=())  # a document's end ends no measurement
    ids = words(o.text, config, made)
    if len(ids) < max(o.lengths):
        raise ValueError(
            f"params.lengths: {max(o.lengths)} exceeds the text's {len(ids)} tokens; shorten it or"
            " give a longer text, prompts=file prompts.path=FILE params.text=prompts"
        )
    kept = strategies(["raw", *o.strategies], config, made)
    job = Job(made, kept["raw"].made, sampling_of(config), config.max_new_tokens, capacity)
    device = job.sampling.seed.device
    curves: dict[str, dict[str, Any]] = {name: {} for name in o.strategies}
    compared, wrong = 0, None
    for length in o.lengths:
        tallies = {name: [Tally() for _ in range(o.positions)] for name in o.strategies}
        starts = spread(len(ids) - length, o.positions)
        for i, start in enumerate(track(starts, f"{length} tokens", "contexts")):
            context = ids[start : start + length]
            raw = job.run(context).tokens
            for name in o.strategies:
                counts = job.run(context, kept[name].draft(context, raw, device))
                tallies[name][i].add(counts, loop_start(context, raw))
                compared += len(raw)
                if counts.tokens != raw and wrong is None:
                    where = {"strategy": name, "context_tokens": length, "start": start}
                    wrong = {**where, **divergence(raw, counts.tokens)}
        for name, parts in tallies.items():
            curves[name][str(length)] = values(parts)
    figures = {"text": o.text, "text_tokens": len(ids), "strategies": curves}
    simulated = any(strategy.oracle for strategy in kept.values())
    return Outcome(figures, Verdict(wrong is None, compared, wrong), simulated, made.warnings)


def words(kind: str, config: Config, made: Assembly) -> list[int]:
    """The text that contexts are cut from."""
    if kind in KINDS:
        return made.tokenizer.encode("\n\n".join(heldout_texts(kind)))
    return joined_ids(config, made)


def spread(room: int, count: int) -> list[int]:
    """`count` places from 0 to `room`."""
    return [room * i // max(1, count - 1) for i in range(count)]


def values(parts: list[Tally]) -> dict[str, Any]:
    """A strategy at one length: over all places, and tokens per step at each of them."""
    total = Tally()
    for part in parts:
        total.join(part)
    each = [part.tokens_per_step for part in parts]
    found = [value for value in each if value is not None]
    return {
        "tokens_per_step": total.tokens_per_step,
        "least_tokens_per_step": min(found, default=None),
        "most_tokens_per_step": max(found, default=None),
        "counted_tokens": total.tokens,
        "accepted_by_position": total.accepted_by_position,
        "tokens_per_step_by_place": each,
    }
