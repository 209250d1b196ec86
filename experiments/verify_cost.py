"""What verifying more rows costs: time of a step of 1 to 16 rows, and its ratio to one row."""

from dataclasses import dataclass, field

from experiments.stepping import state_at, step_ms
from tr.assemble import assemble
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
    made = assemble(config)
    most = max(o.rows)
    state = state_at(made.model, o.context, most, o.context + most, config.seed)
    times = {rows: step_ms(made.model, state, rows, o.rounds) for rows in o.rows}
    rows = {
        str(rows): {"step_ms": ms, "ratio": ms / times[1], "rows_per_s": rows * 1e3 / ms}
        for rows, ms in times.items()
    }
    return Outcome({"context": o.context, "rows": rows}, warnings=made.warnings)
