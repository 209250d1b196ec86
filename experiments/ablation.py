"""What each switch is worth: whole steps with everything on, and with one switch off at a time.

Both sides of a pair are timed in this run, the side that has it on before and after the other. No
bit may depend on an `exact` switch, which is held to that, and so is the step once any switch is on
again; of the others `bits_equal` says whether logits stayed the same. `cumulative` turns one after
another off and leaves it off; one that another made idle (an operator's variant, once it is
separate) costs nothing there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from experiments.ceilings import ceilings, wall_gb_per_s
from experiments.compile_compare import same_bits
from experiments.repeat import draft, state_at
from experiments.stepping import step_ms, warnings
from experiments.trace import launches, wrapped
from kernels.define import VARIANTS, Target, refusal
from kernels.gpu import dependent_launch
from kernels.registry import BEST_FIRST, FAST, Sizes, choose
from tr.assemble import Assembly, assemble, sampling_of
from tr.config import FUSED, Config, check_range, unknown
from tr.decode.step import Model, State
from tr.jit import GRAPHS
from tr.model.sampling import Sampling
from tr.operators import operators, sizes
from tr.progress import track
from tr.report.record import Outcome, Verdict
from tr.tree import map_tensors, tensors

HOST_ROUNDS = 10  # timed ones, at most, of steps that the host launches on a card


@dataclass
class Options:
    rows: list[int] = field(default_factory=lambda: [1, 8])
    context: int = 0
    steps: int = 4  # compared
    rounds: int = 50  # timed, of each side; twice as many of the one that has it on
    switches: list[str] = field(default_factory=list)  # empty: all of them
    plain: bool = False  # on a card: also variants by torch, where no written one is left
    cumulative: bool = True


@dataclass(frozen=True)
class Switch:
    """`off`: the override that turns it off, which sets fields of `kernel`, or the backend."""

    off: str
    kernel: Mapping[str, Any] = field(default_factory=dict)
    backend: str = ""
    exact: bool = False


Steps = Sequence[Mapping[str, Tensor]]  # of each: which rows were kept with their tokens, logits


@dataclass(eq=False)
class Place:
    """A state of one row count, and what it held at first."""

    rows: int
    state: State
    start: Mapping[str, Tensor]

    def rewind(self) -> None:
        for name, x in tensors(self.state).items():
            x.copy_(self.start[name])


@dataclass(eq=False)
class Lab:
    """One set of weights, and the places where steps by any operators begin."""

    config: Config
    options: Options
    made: Assembly
    sampling: Sampling
    capacity: int

    def __post_init__(self) -> None:
        self.device = self.made.model.params.norm.device
        self.target = Target.of(self.device)
        self.places = [self._place(rows) for rows in self.options.rows]

    def _place(self, rows: int) -> Place:
        o, seed = self.options, self.config.seed
        state = state_at(self.made.model, o.context, rows, self.capacity, seed)
        return Place(rows, state, tensors(map_tensors(torch.clone, state)))

    def model(self, off: Iterable[Switch] = ()) -> Model:
        """The model with these switches off."""
        kernel, backend = self.config.kernel, self.config.jit.backend
        for switch in off:
            fields = dict(switch.kernel)
            if "separate" in fields:
                fields["separate"] = [*kernel.separate, *fields["separate"]]
            kernel, backend = replace(kernel, **fields), switch.backend or backend
        config = replace(self.config, kernel=kernel)
        ops, _ = operators(config, self.made.shape, self.capacity, self.target)
        return Model.build(self.made.model.params, ops, self.made.model.ids, backend)

    def steps(self, model: Model, place: Place, count: int) -> Steps:
        place.rewind()
        found = []
        for _ in range(count):
            strategy = draft(place.rows)
            tokens, logits, place.state = model.step(
                strategy, place.state, self.sampling, place.rows
            )
            found.append({"tokens": tokens.clone(), "logits": logits.clone()})
        return found

    def ms(self, model: Model, place: Place, rounds: int) -> float:
        place.rewind()
        ms, place.state = step_ms(model, place.state, self.sampling, place.rows, rounds)
        return ms

    def launches(self, model: Model, place: Place) -> int | None:
        """Kernels, copies and fills of one step on a card."""
        place.rewind()

        def step() -> None:
            *_, place.state = model.step(draft(place.rows), place.state, self.sampling, place.rows)

        return launches(step, self.device)

    def used(self) -> set[str]:
        """The operators that a step calls."""
        seen: set[str] = set()

        def around(name: str, call: Any) -> Any:
            return lambda *args: (seen.add(name), call(*args))[1]

        model = self.made.model
        eager = Model.build(model.params, wrapped(self.made.ops, around), model.ids)
        for place in self.places:
            self.steps(eager, place, 1)
        return seen

    def switches(self) -> dict[str, Switch]:
        """All that can be turned off here, in the order in which it is."""
        config, kernel, used = self.config, self.config.kernel, self.used()
        found = {}
        if kernel.overlap and dependent_launch(self.device):
            for name in ("fetch_ahead",) * kernel.fetch_ahead + ("overlap",):
                found[name] = Switch(f"kernel.{name}=false", {name: False}, exact=True)
        asked = sizes(self.made.shape, config.quant.format, [config.kv.format], self.capacity)
        picked = choose(kernel.variant, kernel.overrides(), self.target, asked)
        plain = self.options.plain or self.device.type == "cpu"
        for name, variant in picked.items():
            other = next_best(name, variant, self.target, asked, plain)
            if name in used and other:
                found[name] = Switch(f"kernel.{name}={other}", {name: other})
        for name in FUSED:
            if name in used and name not in kernel.separate:
                off = f"kernel.separate=[{name}]"
                found[f"separate_{name}"] = Switch(off, {"separate": [name]})
        if config.jit.backend in GRAPHS:
            found["jit"] = Switch("jit=eager", backend="eager", exact=True)
        return found


def next_best(operator: str, variant: str, target: Target, asked: Sizes, plain: bool) -> str:
    """The best variant behind `variant` that runs, among written ones unless `plain`; or ""."""
    order = BEST_FIRST.get(target.type, BEST_FIRST["cpu"])
    for name in order[order.index(variant) + 1 :] if variant in order else ():
        if name in VARIANTS[operator] and (plain or name in FAST):
            if not refusal(operator, name, target, asked.get(operator, ())):
                return name
    return ""


def difference(a: Steps, b: Steps) -> dict[str, Any] | None:
    """The first step and tensor in which two runs differ; None: there is none."""
    for i, (one, two) in enumerate(zip(a, b, strict=True)):
        for name, x in one.items():
            if not same_bits(x, two[name]):
                return {"step": i, "tensor": name}
    return None


class Pairs:
    """Measures a model beside the one that has everything on, and holds bits to each other."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.base = lab, lab.model()
        count = lab.options.steps
        self.want = {place.rows: lab.steps(self.base, place, count) for place in lab.places}
        self.first: dict[str, Any] | None = None
        self.compared = 0

    def measure(self, name: str, off: Sequence[Switch]) -> dict[str, dict[str, Any]]:
        """Figures by row count; `off` alone is exact where every switch of it is."""
        lab, o = self.lab, self.lab.options
        model = lab.model(off)
        by_host = lab.device.type == "cuda" and any(switch.backend for switch in off)
        rounds = min(o.rounds, HOST_ROUNDS) if by_host else o.rounds
        figures = {}
        for place in lab.places:
            want, got = self.want[place.rows], lab.steps(model, place, o.steps)
            equal = difference(want, got)
            if all(switch.exact for switch in off):
                self._hold(name, place.rows, equal)
            on = lab.ms(self.base, place, o.rounds)
            off_ms = lab.ms(model, place, rounds)
            on_again = lab.ms(self.base, place, o.rounds)
            again = difference(want, lab.steps(self.base, place, o.steps))
            self._hold(f"{name}, on again", place.rows, again)
            mean = (on + on_again) / 2
            figures[str(place.rows)] = {
                "off_step_ms": off_ms,
                "on_step_ms": mean,
                "cost_ms": off_ms - mean,
                "on_drift_ms": abs(on_again - on),
                "bits_equal": equal is None,
            }
        return figures

    def _hold(self, said: str, rows: int, where: dict[str, Any] | None) -> None:
        self.compared += rows * self.lab.options.steps
        if where and self.first is None:
            self.first = {"switch": said, "rows": rows, **where}

    def baseline(self, wall: float) -> dict[str, Any]:
        lab, kv = self.lab, self.lab.config.kv.format
        figures = {}
        for place in lab.places:
            ms = lab.ms(self.base, place, lab.options.rounds)
            moved = lab.made.moved(kv, lab.options.context, place.rows)
            figures[str(place.rows)] = {
                "step_ms": ms,
                "bytes_per_step": moved,
                "wall_fraction": moved / (ms * 1e-3) / (wall * 1e9),
                "launches": lab.launches(self.base, place),
            }
        return figures


@torch.inference_mode()
def run(config: Config) -> Outcome:
    o = config.options(Options)
    check_range("params.steps", o.steps, 1, 64)
    capacity = o.context + o.steps * max(o.rows)
    made = assemble(config, capacity)
    lab = Lab(config, o, made, sampling_of(config), capacity)
    limits, known = ceilings(lab.device), lab.switches()
    for name in o.switches:
        if name not in known:
            raise ValueError(unknown("params.switches: unknown switch", name, known))
    chosen = {name: s for name, s in known.items() if not o.switches or name in o.switches}
    if not chosen:
        raise ValueError("ablation: nothing can be turned off here; use kernel=auto")
    pairs = Pairs(lab)
    wall = wall_gb_per_s(limits, config.device.read_gb_per_s)
    figures: dict[str, Any] = {
        "context": o.context,
        "wall_gb_per_s": wall,
        "baseline": pairs.baseline(wall),
        "off": {name: {"override": s.off, "exact": s.exact} for name, s in chosen.items()},
        "switches": {
            name: pairs.measure(name, [switch])
            for name, switch in track(list(chosen.items()), "ablation", "switches")
        },
    }
    if o.cumulative:
        names, off = list(chosen), list(chosen.values())
        figures["cumulative"] = {
            name: pairs.measure(f"all up to {name}", off[: i + 1])
            if i
            else figures["switches"][name]
            for i, name in track(list(enumerate(names)), "ablation", "switches in all")
        }
    said = made.warnings + warnings(config, lab.device)
    verdict = Verdict(pairs.first is None, pairs.compared, pairs.first)
    return Outcome(figures, verdict, warnings=said, device=limits)
