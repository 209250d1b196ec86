"""What verifying more rows costs: time of a step of 1 to 16 rows, and its ratio to one row."""

from dataclasses import dataclass, field

from experiments.ceilings import ceilings
from experiments.repeat import state_at
from experiments.stepping import step_ms, warnings
from tr.assemble import assemble, sampling_of
from tr.config import Config
from tr.report.record import Outcome


@dataclass
class Options:
    rows: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    context: int = 0
    rounds: int = 50


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if not o.rows or o.rows[0] != 1:
        raise ValueError(f"params.rows: expected a list that begins with 1, got {o.rows}")
    most = max(o.rows)
    made = assemble(config, o.context + most)
    device = made.model.params.norm.device
    limits, sampling = ceilings(device), sampling_of(config)
    state = state_at(made.model, o.context, most, o.context + most, config.seed)
    times = {}
    for rows in o.rows:
        times[rows], state = step_ms(made.model, state, sampling, rows, o.rounds)
    rows = {
        str(rows): {"step_ms": ms, "ratio": ms / times[1], "rows_per_s": rows * 1e3 / ms}
        for rows, ms in times.items()
    }
    figures = {"context": o.context, "rows": rows}
    said = made.warnings + warnings(config, device)
    return Outcome(figures, warnings=said, device=limits)
