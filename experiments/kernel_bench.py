"""Every operator, variant and shape of a model on its own: microseconds, GB/s, share of the wall.

Weights rotate past the cache and are random; a variant's call is timed only after it has proved as
close to float64 as the reference. Arguments of one call are what a step would hand over.

`params.others` adds other libraries' kernels for the product of `int4_matmul`, under `others`: each
in its own layout, timed after it has proved as right as bfloat16 weights can be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from experiments.ceilings import ceilings, wall_gb_per_s
from kernels import registry  # noqa: F401  (registers every variant)
from kernels.benches import BENCHES
from kernels.define import MAX_ROWS, VARIANTS, Target, refusal
from kernels.int4_matmul.layout import dequantise
from kernels.int4_matmul.others import OTHERS
from tr.bench import Draw, Timing, measure
from tr.config import Config, check_range, unknown
from tr.progress import track
from tr.report.record import Outcome
from tr.testing import closeness
from tr.tree import tensors

OTHERS_FOR = "int4_matmul"  # the operator that other libraries have


@dataclass
class Options:
    operators: list[str] = field(default_factory=list)  # empty: all of them
    variants: list[str] = field(default_factory=list)  # empty: all that the device supports
    cases: list[str] = field(default_factory=list)  # empty: all shapes; else those that contain one
    rows: list[int] = field(default_factory=lambda: [1, 8, 16])
    rounds: int = 20
    cold_bytes: int | None = None  # null: five last-level caches
    others: list[str] = field(default_factory=list)  # other libraries' int4 kernels, by name


@dataclass(frozen=True)
class Job:
    """One operator at one shape and row count."""

    operator: str
    case: str
    sizes: dict[str, Any]
    rows: int

    @property
    def name(self) -> str:
        return f"{self.case} r{self.rows}"


class Right:
    """What a call must give: the reference's results, and its results on float64 arguments."""

    def __init__(self, operator: str, arguments: Sequence[Any]) -> None:
        given = [i for i, a in enumerate(arguments) if a is not None]  # some may be left out
        self.written = [i for i in written(operator) if i in given]
        self.meaning, self.arguments = BENCHES[operator].meaning, arguments
        self.reference = VARIANTS[operator]["reference"]
        self.plain = self.results(self.reference, arguments)
        wide = [a.double() if _is_float(a) else a for a in arguments]
        self.exact = self.results(self.reference, wide)

    def results(self, call: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Tensor, ...]:
        """What the outputs mean, then the arguments that the call overwrites."""
        own = [a.clone() if i in self.written else a for i, a in enumerate(arguments)]
        out = call(*own)
        results = out if isinstance(out, tuple) else () if out is None else (out,)
        return (*self.meaning(results), *(own[i] for i in self.written))

    def complaint(self, call: Callable[..., Any]) -> str:
        """What is wrong with `call`'s results, or an empty string."""
        return self.judge(call)[1]

    def judge(self, call: Callable[..., Any]) -> tuple[float, str]:
        """The largest share of its budget that a result takes, and the first complaint, if any."""
        found, worst, said = self.results(call, self.arguments), 0.0, ""
        for i, (a, b, c) in enumerate(zip(found, self.plain, self.exact, strict=True)):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                wanted = f"{b.dtype} {tuple(b.shape)}"
                return math.inf, f"result {i} is {a.dtype} {tuple(a.shape)}, not {wanted}"
            if not _is_float(a):
                if not torch.equal(a, b):
                    return math.inf, f"result {i} differs from the reference's"
                continue
            error, budget = closeness(a, b, c)
            if error:
                worst = max(worst, error / budget if budget else math.inf)
            if not error <= budget:
                said = said or f"result {i} is off by {error:.3e}, its budget is {budget:.3e}"
        return worst, said


def complaint_of_other(found: Tensor, right: Right) -> str:
    """What is wrong with another library's result, or an empty string; its weights are bfloat16."""
    x, tiles, splits = right.arguments[:3]
    weight = dequantise(tiles, sum(splits), torch.bfloat16)
    plain, exact = VARIANTS["matmul"]["reference"](x, weight, splits), right.exact[0]
    if (found.shape, found.dtype) != (plain.shape, plain.dtype):
        return f"it is {found.dtype} {tuple(found.shape)}, not {plain.dtype} {tuple(plain.shape)}"
    error, budget = closeness(found, plain, exact)
    return "" if error <= budget else f"it is off by {error:.3e}, its budget is {budget:.3e}"


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def written(operator: str) -> list[int]:
    """Positions of the arguments that the operator overwrites, as its schema says."""
    schema = getattr(torch.ops.tr, f"{operator}_reference").default._schema
    return [
        i
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]


def jobs(o: Options, shape: Any) -> list[Job]:
    """Every case of the chosen operators at every row count."""
    for name in o.operators:
        if name not in BENCHES:
            raise ValueError(unknown("params.operators: unknown operator", name, BENCHES))
    known = {variant for table in VARIANTS.values() for variant in table}
    for name in o.variants:
        if name not in known:
            raise ValueError(unknown("params.variants: unknown variant", name, known))
    for name in o.others:
        if name not in OTHERS:
            raise ValueError(unknown("params.others: unknown kernel", name, OTHERS))
    for rows in o.rows:
        check_range("params.rows", rows, 1, MAX_ROWS)
    return [
        Job(operator, case, dict(sizes), rows)
        for operator in o.operators or BENCHES
        for case, sizes in BENCHES[operator].cases(shape).items()
        if not o.cases or any(part in case for part in o.cases)
        for rows in o.rows
    ]


@torch.inference_mode()
def run(config: Config) -> Outcome:
    o, shape = config.options(Options), config.model.spec()
    todo, device = jobs(o, shape), config.device.resolve()
    limits, target = ceilings(device), Target.of(device)
    wall = wall_gb_per_s(limits, config.device.read_gb_per_s)
    figures: dict[str, Any] = {"wall_gb_per_s": wall}
    reasons = {name: OTHERS[name].refusal(device) for name in o.others}
    warnings = [f"{name} {reason}, so it is left out" for name, reason in reasons.items() if reason]
    others = [name for name, reason in reasons.items() if not reason]
    for job in track(todo, "kernels", "cases"):
        bench = BENCHES[job.operator]
        arguments = bench.inputs(Draw(device, seed=config.seed), job.rows, **job.sizes)
        moved = bench.nbytes(*arguments)
        variants = [
            name
            for name in VARIANTS[job.operator]
            if not refusal(job.operator, name, target) and (not o.variants or name in o.variants)
        ]
        try:
            right = Right(job.operator, arguments)
        except torch.OutOfMemoryError:  # in float64, where a card holds little more than the matrix
            warnings.append(f"{job.operator}, {job.name}: no memory to check it, so not timed")
            continue
        for name in variants:
            call, label = VARIANTS[job.operator][name], f"{job.operator}.{name}, {job.name}"
            try:
                complaint = right.complaint(call)
            except ValueError as error:  # a shape that the variant does not take
                warnings.append(f"{label} is refused: {error}")
                continue
            if complaint:
                warnings.append(f"{label} is wrong and not timed: {complaint}")
                continue
            timing = measure(call, arguments, moved, device, o.rounds, o.cold_bytes)
            values = _values(timing, wall)
            figures.setdefault(job.operator, {}).setdefault(name, {})[job.name] = values
        for name in others if job.operator == OTHERS_FOR else ():
            label = f"{name}, {job.name}"
            x, tiles, splits = arguments[:3]
            own = [x, *OTHERS[name].weights(tiles, sum(splits))]
            y = OTHERS[name].call(*own)
            if complaint := complaint_of_other(y, right):
                warnings.append(f"{label} is wrong and not timed: {complaint}")
                continue
            moved = y.nbytes + sum(t.nbytes for t in tensors(own).values())
            timing = measure(OTHERS[name].call, own, moved, device, o.rounds, o.cold_bytes)
            values = _values(timing, wall)
            figures.setdefault("others", {}).setdefault(name, {})[job.name] = values
    return Outcome(figures, warnings=tuple(warnings), device=limits)


def _values(timing: Timing, wall: float) -> dict[str, Any]:
    return {
        "us": timing.us,
        "gb_per_s": timing.gb_per_s,
        "wall_fraction": timing.gb_per_s / wall,
        "us_min": timing.us_min,
        "us_max": timing.us_max,
        "bytes": timing.bytes,
        "captured": timing.captured,
    }
