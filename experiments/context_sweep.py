"""A step's time against the context's length: raw decoding and drafts, by cache format.

Caches hold random keys and values that went through their format's own rounding. What a draft
accepts depends on a text, which a random model has not: the speed of a drafting strategy is given
for `tokens_per_step` tokens a step, and the record says that acceptance is simulated. `memory`
gives what each strategy's steps take at most, its caches long enough for the last context.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from experiments.ceilings import ceilings, wall_gb_per_s
from experiments.memory import cache_bytes, held, peaks, release
from experiments.repeat import put, state_at
from experiments.stepping import step_ms, warnings
from experiments.strategies import strategies
from kernels.define import MAX_ROWS
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.progress import track
from tr.report.record import Outcome


@dataclass
class Options:
    strategies: list[str] = field(default_factory=lambda: ["raw", "mtp", "dflash2"])
    kv: list[str] = field(default_factory=lambda: ["bf16", "fp8", "int8", "int4"])
    contexts: list[int] = field(default_factory=lambda: [0, 8192, 32768, 90000, 200000, 262000])
    tokens_per_step: float = 5.1  # of a drafting strategy, assumed
    rounds: int = 30
    clip: bool = False  # leave out contexts past the model's positions instead of refusing them


def run(config: Config) -> Outcome:
    o, shape = config.options(Options), config.model.spec()
    limit = shape.max_positions - MAX_ROWS
    contexts = [c for c in o.contexts if c <= limit or not o.clip]
    if not contexts or max(contexts) > limit:
        raise ValueError(
            f"params.contexts: {o.contexts} exceed the model's {limit}; shorten them or set"
            " params.clip=true"
        )
    figures: dict[str, Any] = {"assumed_tokens_per_step": o.tokens_per_step, "strategies": {}}
    memory: dict[str, dict[str, float]] = {}
    said: tuple[str, ...] = ()
    limits: dict[str, Any] = {}
    for kv in o.kv:
        chosen = replace(config, kv=replace(config.kv, format=kv))
        before = held()
        made = assemble(chosen, max(contexts) + MAX_ROWS)
        weights = held() - before
        limits = limits or ceilings(made.model.params.norm.device)
        figures["strategies"] |= sweep(chosen, o, made, contexts, limits, weights, memory)
        said += made.warnings + warnings(chosen, made.model.params.norm.device)
        release(made.model)
        del made  # before the next one is made
    if any(memory.values()):
        figures["memory"] = memory
    simulated = any(name != "raw" for name in o.strategies)
    return Outcome(figures, None, simulated, tuple(dict.fromkeys(said)), limits)


@torch.inference_mode()
def sweep(
    config: Config,
    o: Options,
    made: Assembly,
    contexts: list[int],
    limits: dict[str, Any],
    weights: int,
    memory: dict[str, dict[str, float]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Every strategy at every context, with one cache format; their peaks go into `memory`."""
    sampling, kv = sampling_of(config), config.kv.format
    wall = wall_gb_per_s(limits, config.device.read_gb_per_s)
    capacity = max(contexts) + MAX_ROWS
    found: dict[str, dict[str, dict[str, float]]] = {}
    raw: dict[int, float] = {}
    before = held()
    made_of = strategies(["raw", *o.strategies], config, made)
    drafts = held() - before
    for name, strategy in made_of.items():
        release(made.model)
        draft, values = strategy.made, {}
        if strategy.oracle is not None:
            raise ValueError(f"params.strategies: {name} needs a recorded text; leave it out")
        state = state_at(made.model, max(contexts), draft.rows, capacity, config.seed, draft)
        for context in track(contexts, f"{kv}: {name}", "contexts"):
            at = max(context, draft.rows)  # a step was before this one
            put(state, at, draft.rows)
            state.feed.anchor.copy_(state.feed.history[at])
            ms, state = step_ms(made.model, state, sampling, draft.rows, o.rounds, draft)
            raw.setdefault(context, ms)  # the first strategy is raw decoding
            kept = 1.0 if name == "raw" else o.tokens_per_step
            values[str(context)] = {"step_ms": ms, "tokens_per_s": kept * 1e3 / ms}
            if name == "raw":
                moved = made.moved(kv, context)
                values[str(context)]["wall_fraction"] = moved / (ms * 1e-3) / (wall * 1e9)
            else:
                values[str(context)]["ratio"] = ms / raw[context]
        if name in o.strategies:
            found[f"{name}, {kv}"] = values
            memory[f"{name}, {kv}"] = peaks(weights, drafts, cache_bytes(state))
        del state
    return found
