"""Where a step's time goes: launches, microseconds and bytes by operator, and the gaps between.

On CUDA a captured step is profiled: `step_us` is its time without the profiler, `busy_us` the sum
of its kernels under it, `gap_us` what is left. Where launches overlap, a kernel's time includes its
wait for the one before, so that their sum exceeds the step. On a CPU all three come from the
profiled run, and `launches` counts calls of operators. A step's rows are all pending when it
starts, as if accepted. Drafts cost nothing, unless a strategy is chosen: steps of its row count are
then whole ones, and its operators are listed behind DRAFT.
"""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.ceilings import ceilings, wall_gb_per_s
from experiments.repeat import draft, put, state_at
from experiments.stepping import step_ms
from experiments.trace import PREFIX, Parts, Trace, counted, owners_of, record, scoped, split
from kernels.gpu import dependent_launch
from kernels.registry import Ops
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config
from tr.decode.step import Model, State
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.mtp import Mtp
from tr.jit import GRAPHS
from tr.model.sampling import Sampling
from tr.report.record import Outcome

DRAFT = "draft."  # before the names of a strategy's operators
STEP = "step"  # the scope around a whole step on a CPU
OVERLAP = (
    "launches overlap: a kernel's time includes its wait for the one before; kernel.overlap=false"
    " gives each its own"
)


@dataclass
class Options:
    rows: list[int] = field(default_factory=lambda: [1, 8])
    context: int = 0
    steps: int = 8  # profiled
    rounds: int = 50  # timed


@dataclass(eq=False)
class Place:
    """A state that steps of `rows` rows start from, again and again."""

    state: State
    sampling: Sampling
    rows: int
    context: int
    strategy: Draft

    def by(self, model: Model, strategy: Draft | None = None) -> Callable[[], None]:
        """A step by `model`, put back to the start first; `strategy` may name its operators."""
        strategy = strategy or self.strategy
        self.rewind()

        def call() -> None:
            *_, self.state = model.step(strategy, self.state, self.sampling, self.rows)

        return call

    def rewind(self) -> None:
        put(self.state, self.context, self.rows)


@torch.inference_mode()
def run(config: Config) -> Outcome:
    o = config.options(Options)
    capacity = o.context + max(o.rows)
    made = assemble(config, capacity)
    device, sampling = made.model.params.norm.device, sampling_of(config)
    limits = ceilings(device)
    wall = wall_gb_per_s(limits, config.device.read_gb_per_s)
    profiled = _on_cpu
    if device.type == "cuda":
        model, profiled = made.model, _on_card
        if config.jit.backend not in GRAPHS:
            model = Model.build(model.params, made.ops, model.ids, "cuda_graph")
        made = dataclasses.replace(made, model=model)
    figures: dict[str, Any] = {"wall_gb_per_s": wall, "rows": {}, "operators": {}}
    chosen = None if config.draft.strategy == "raw" else made.draft(config)
    for rows in o.rows:
        strategy = chosen if chosen is not None and chosen.rows == rows else draft(rows)
        state = state_at(made.model, o.context, rows, capacity, config.seed, strategy)
        place = Place(state, sampling, rows, o.context, strategy)
        moved: Counter[str] = Counter()
        counting = through(strategy, counted(made.ops, moved, DRAFT))
        place.by(_eager(made, ops=counted(made.ops, moved)), counting)()
        step_us, parts = profiled(place, made, o, device)
        busy = sum(parts.us.values())
        total = made.moved(config.kv.format, o.context, rows)
        figures["rows"][str(rows)] = {
            "launches": sum(parts.launches.values()),
            "step_us": step_us,
            "busy_us": busy,
            "gap_us": max(0.0, step_us - busy),
            **_rate(total, step_us, wall),
        }
        figures["operators"][str(rows)] = {
            name: {
                "launches": parts.launches[name],
                "us": us,
                "share": us / step_us,
                **_rate(moved[name], us, wall),
            }
            for name, us in sorted(parts.us.items(), key=lambda item: -item[1])
        }
    said = made.warnings + (
        (OVERLAP,) if config.kernel.overlap and dependent_launch(device) else ()
    )
    return Outcome(figures, warnings=said, device=limits)


def through(strategy: Draft, ops: Ops) -> Draft:
    """`strategy` by other operators, where it has any."""
    if isinstance(strategy, Mtp):
        return dataclasses.replace(strategy, ops=ops)
    if isinstance(strategy, Dflash2) and strategy.fused is not None:
        return dataclasses.replace(strategy, fused=dataclasses.replace(strategy.fused, ops=ops))
    return strategy


def _eager(made: Assembly, **changes: Any) -> Model:
    model = Model.build(made.model.params, made.ops, made.model.ids)
    return dataclasses.replace(model, **changes)


def _rate(moved: float, us: float, wall: float) -> dict[str, Any]:
    """Bytes and what they amount to; nothing where none are counted."""
    if not moved:
        return {"bytes": None, "gb_per_s": None, "wall_fraction": None}
    rate = moved / us * 1e-3
    return {"bytes": moved, "gb_per_s": rate, "wall_fraction": rate / wall}


def _on_card(place: Place, made: Assembly, o: Options, device: torch.device) -> tuple[float, Parts]:
    """Microseconds of a captured step, and its parts."""
    named = through(place.strategy, scoped(made.ops, DRAFT))
    eager = record(place.by(_eager(made, ops=scoped(made.ops)), named), device)
    place.rewind()  # a step is timed where the state stands
    ms, place.state = step_ms(
        made.model, place.state, place.sampling, place.rows, o.rounds, place.strategy
    )
    steps = [record(place.by(made.model), device).kernels for _ in range(o.steps)]
    return ms * 1e3, split(steps, owners_of(steps[0], eager))


def _on_cpu(place: Place, made: Assembly, o: Options, device: torch.device) -> tuple[float, Parts]:
    model = _eager(made, ops=scoped(made.ops))
    named = through(place.strategy, scoped(made.ops, DRAFT))

    def profiled() -> Trace:
        call = place.by(model, named)

        def whole() -> None:
            with torch.profiler.record_function(PREFIX + STEP):
                call()

        return record(whole, device)

    profiled()
    scopes = [profiled().scopes for _ in range(o.steps)]
    steps = [[s for s in seen if s.name != STEP] for seen in scopes]
    step_us = statistics.median(s.us for seen in scopes for s in seen if s.name == STEP)
    return step_us, split(steps, [s.name for s in steps[0]])
