"""What verifying more rows costs: time of a step of 1 to 16 rows, and its ratio to one row.

With a draft chosen, also its whole step, draft and verification, beside a raw one of the same run.
"""

from dataclasses import dataclass, field
from typing import Any

from experiments.ceilings import ceilings
from experiments.repeat import state_at
from experiments.stepping import step_ms, warnings
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.drafts.base import Draft
from tr.progress import track
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
    for rows in track(o.rows, "verify_cost", "row counts"):
        times[rows], state = step_ms(made.model, state, sampling, rows, o.rounds)
    rows = {
        str(rows): {"step_ms": ms, "ratio": ms / times[1], "rows_per_s": rows * 1e3 / ms}
        for rows, ms in times.items()
    }
    figures: dict[str, Any] = {"context": o.context, "rows": rows}
    if config.draft.strategy != "raw":
        figures["speculative"] = _speculative(config, o, made, times)
    said = made.warnings + warnings(config, device)
    return Outcome(figures, warnings=said, device=limits)


def _speculative(
    config: Config, o: Options, made: Assembly, times: dict[int, float]
) -> dict[str, float]:
    """`draft_ms` is what the step takes beyond verifying its rows with drafts that cost nothing."""
    strategy, sampling = made.draft(config), sampling_of(config)
    rows = strategy.rows

    def timed(by: Draft | None) -> float:
        state = state_at(made.model, o.context, rows, o.context + rows, config.seed, by)
        return step_ms(made.model, state, sampling, rows, o.rounds, by)[0]

    verify, whole = times.get(rows) or timed(None), timed(strategy)
    return {
        "rows": rows,
        "raw_step_ms": times[1],
        "verify_step_ms": verify,
        "step_ms": whole,
        "draft_ms": whole - verify,
        "ratio": whole / times[1],
    }
