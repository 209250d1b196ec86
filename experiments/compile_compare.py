"""The jit backends on one and the same step: build time, step time, and whether bits are eager's.

Backends that the device or the machine cannot run are listed with the reason.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from experiments.ceilings import ceilings
from experiments.repeat import draft, put, state_at
from experiments.stepping import step_ms
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import Config, check_range, unknown
from tr.decode.step import Model
from tr.jit import BACKENDS
from tr.report.record import Outcome
from tr.tree import tensors

EAGER = "eager"


@dataclass
class Options:
    backends: list[str] = field(default_factory=lambda: list(BACKENDS))
    rows: int = 1
    context: int = 0
    steps: int = 4  # compared, the first one included
    rounds: int = 50  # timed
    cold: bool = True  # build without what earlier builds left in Inductor's caches


@dataclass(frozen=True)
class Ran:
    """What a backend's steps gave, and what they took; `build_s` is the first one's."""

    results: list[Tensor]
    build_s: float
    step_ms: float


@torch.inference_mode()
def run(config: Config) -> Outcome:
    o = config.options(Options)
    for name in o.backends:
        if name not in BACKENDS:
            raise ValueError(unknown("params.backends: unknown backend", name, BACKENDS))
    check_range("params.steps", o.steps, 1, 64)
    made = assemble(config, _capacity(o))
    limits = ceilings(made.model.params.norm.device)
    eager = measure(made, EAGER, o, config)
    figures: dict[str, dict[str, Any]] = {}
    warnings = list(made.warnings)
    for name in o.backends:
        try:
            with torch._inductor.config.patch(force_disable_caches=o.cold):
                ran = eager if name == EAGER else measure(made, name, o, config)
        except (ValueError, TorchDynamoException) as error:
            reason = str(error).strip().splitlines()[0]
            figures[name] = {"build_s": None, "step_ms": None, "equal": None, "refused": reason}
            continue
        equal = all(map(same_bits, ran.results, eager.results))
        figures[name] = {"build_s": ran.build_s, "step_ms": ran.step_ms, "equal": equal}
        figures[name]["refused"] = ""
        if not equal:
            warnings.append(f"jit={name}: results or state differ from eager's")
    return Outcome({"backends": figures}, warnings=tuple(warnings), device=limits)


def _capacity(o: Options) -> int:
    """Tokens that all the compared steps may keep."""
    return o.context + o.steps * o.rows


def measure(made: Assembly, backend: str, o: Options, config: Config) -> Ran:
    """Steps from one state by one backend. Raises what its building raises."""
    torch._dynamo.reset()
    settings, strategy = sampling_of(config), draft(o.rows)
    model = Model.build(made.model.params, made.ops, made.model.ids, backend)
    state = state_at(model, o.context, o.rows, _capacity(o), config.seed)
    results: list[Tensor] = []
    began = time.perf_counter()
    for _ in range(o.steps):
        *out, state = model.step(strategy, state, settings, o.rows)
        if not results:
            out[0].tolist()  # waits for the device
            build_s = time.perf_counter() - began
        results += [x.clone() for x in out]
    results += [x.clone() for x in tensors(state).values()]
    put(state, o.context, o.rows)
    ms, _ = step_ms(model, state, settings, o.rows, o.rounds)
    return Ran(results, build_s, ms)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    )
