"""Raw decoding at several contexts: time of a step, and which share of the wall it reaches."""

from dataclasses import dataclass, field
from functools import partial

import torch

from experiments.ceilings import ceilings, wall_gb_per_s
from experiments.repeat import draft, state_at
from experiments.stepping import step_ms, warnings
from experiments.trace import launches
from tr.assemble import assemble, sampling_of
from tr.config import Config
from tr.progress import track
from tr.report.record import Outcome


@dataclass
class Options:
    contexts: list[int] = field(default_factory=lambda: [0, 8192, 32768, 131072, 200000])
    rounds: int = 50
    clip: bool = False  # leave out contexts past the model's positions instead of refusing them


@torch.inference_mode()
def run(config: Config) -> Outcome:
    o, shape = config.options(Options), config.model.spec()
    limit = shape.max_positions - 1
    contexts = [c for c in o.contexts if c <= limit or not o.clip]
    if too_long := [c for c in contexts if c > limit]:
        raise ValueError(
            f"params.contexts: {too_long} exceed the model's {limit}; shorten them or set"
            " params.clip=true"
        )
    capacity = max(contexts) + 1
    made = assemble(config, capacity)
    device = made.model.params.norm.device
    limits, sampling = ceilings(device), sampling_of(config)
    wall = wall_gb_per_s(limits, config.device.read_gb_per_s)
    figures: dict = {"wall_gb_per_s": wall, "contexts": {}}
    state = state_at(made.model, 0, 1, capacity, config.seed)
    for context in track(contexts, "decode", "contexts"):
        for place in (state.feed.pos, state.target.pos):
            place.fill_(context)
        ms, state = step_ms(made.model, state, sampling, 1, o.rounds)
        moved = made.moved(config.kv.format, context)
        figures["contexts"][str(context)] = {
            "step_ms": ms,
            "tokens_per_s": 1e3 / ms,
            "bytes_per_step": moved,
            "wall_fraction": moved / (ms * 1e-3) / (wall * 1e9),
        }
    step = partial(made.model.step, draft(1), state, sampling, 1)
    figures["launches_per_step"] = launches(step, device)
    said = made.warnings + warnings(config, device)
    return Outcome(figures, warnings=said, device=limits)
