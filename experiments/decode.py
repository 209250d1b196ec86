"""Raw decoding at several contexts: time of a step, and which share of the wall it reaches."""

from dataclasses import dataclass, field

from experiments.ceilings import read_bandwidth
from experiments.stepping import state_at, step_ms
from tr.assemble import assemble
from tr.config import Config
from tr.report.record import Outcome
from tr.roofline import plan


@dataclass
class Options:
    contexts: list[int] = field(default_factory=lambda: [0, 8192, 32768, 131072, 200000])
    rounds: int = 50
    clip: bool = False  # leave out contexts past the model's positions instead of refusing them


def run(config: Config) -> Outcome:
    o, shape = config.options(Options), config.model.spec()
    made = assemble(config)
    device = made.model.params.norm.device
    limit = shape.max_positions - 1
    contexts = [c for c in o.contexts if c <= limit or not o.clip]
    if too_long := [c for c in contexts if c > limit]:
        raise ValueError(
            f"params.contexts: {too_long} exceed the model's {limit}; shorten them or set"
            " params.clip=true"
        )
    measured = read_bandwidth(device)
    wall = max(measured, config.device.read_gb_per_s or 0.0)
    figures: dict = {"read_gb_per_s": measured, "wall_gb_per_s": wall, "contexts": {}}
    capacity = max(contexts) + 1
    state = state_at(made.model, 0, 1, capacity, config.seed)
    for context in contexts:
        state.pos.fill_(context)
        ms = step_ms(made.model, state, 1, o.rounds)
        moved = plan(shape, config.quant.format, config.kv.format, context).moved
        figures["contexts"][str(context)] = {
            "step_ms": ms,
            "tokens_per_s": 1e3 / ms,
            "bytes_per_step": moved,
            "wall_fraction": moved / (ms * 1e-3) / (wall * 1e9),
        }
    return Outcome(figures, warnings=made.warnings, device={"read_gb_per_s": measured})
