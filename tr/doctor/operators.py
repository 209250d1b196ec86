"""One differential test per operator: every variant that runs here, against its reference."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.kernel_bench import Right
from kernels.benches import BENCHES
from kernels.define import VARIANTS, Target, refusal
from tr.bench import Draw, Sizes
from tr.doctor.checkpoint import spec
from tr.doctor.finding import FAIL, OK, WARN, Finding, guarded
from tr.doctor.machine import Machine
from tr.model.config import ModelConfig
from tr.progress import track
from tr.tree import tensors

ROWS = 4
LARGEST = {"cpu": 12e6, "cuda": 256e6}  # bytes of a case's arguments
SMALL = "tiny"  # the model whose sizes stand in for larger ones


@dataclass
class Tried:
    """What a variant's cases came to."""

    cases: int = 0
    share: float = 0.0  # of the budget, at most
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def hear(self, case: str, right: Right, call: Callable[..., Any]) -> None:
        try:
            share, complaint = right.judge(call)
        except ValueError as error:  # a shape that the variant does not take
            self.refused.append(f"{case}: {error}")
            return
        except Exception as error:  # it does not compile, or the card lacks what it needs
            first = (str(error).splitlines() or [""])[0]
            self.wrong.append(f"{case}: {type(error).__name__}: {first}")
            return
        self.cases += 1
        self.share = max(self.share, share)
        if complaint:
            self.wrong.append(f"{case}: {complaint}")


def check(machine: Machine) -> Iterator[Finding]:
    device = machine.device
    try:
        shape = machine.outline.shape
    except (ValueError, OSError):  # which the checkpoint's own check tells of
        shape = machine.config.model.spec()
    for operator in track(sorted(BENCHES), "operators", "operators"):
        yield from guarded(operator, lambda name=operator: tested(name, shape, device))


@torch.inference_mode()
def tested(operator: str, shape: ModelConfig, device: torch.device) -> list[Finding]:
    target = Target.of(device)
    reasons = {v: refusal(operator, v, target) for v in sorted(VARIANTS[operator])}
    tried = {v: Tried() for v, reason in reasons.items() if v != "reference" and not reason}
    skipped = {r: [v for v in reasons if reasons[v] == r] for r in reasons.values() if r}
    cases, large = sizes(operator, shape, device), []
    for name, own in cases.items():
        try:
            arguments = BENCHES[operator].inputs(Draw(device), ROWS, **own)
            right = Right(operator, arguments)
        except torch.OutOfMemoryError:
            large.append(name)
            continue
        for variant, found in tried.items():
            found.hear(name, right, VARIANTS[operator][variant])
    said = [f"no memory for {', '.join(large)}"] if large else []
    said += [f"not run: {', '.join(names)}, {reason}" for reason, names in skipped.items()]
    return [told(operator, tried, len(cases) - len(large), said)]


def told(operator: str, tried: Mapping[str, Tried], cases: int, beside: list[str]) -> Finding:
    said, wrong, refused = [], [], []
    for variant, found in tried.items():
        share = f"{found.share:.0%} of the budget" if found.share < 10 else "far beyond the budget"
        if found.cases:
            said.append(f"{variant} {found.cases} of {counted(cases)}, at worst {share}")
        wrong += [f"{variant}, {complaint}" for complaint in found.wrong]
        refused += [f"{variant} refused {reason}" for reason in found.refused]
    if not tried:
        said.append(f"the reference alone, {counted(cases)}")
    todo = "those cases run another variant" if refused else ""
    if wrong:
        todo = f"kernel.{operator}=reference until it is right; report it"
    return Finding(
        operator,
        FAIL if wrong else WARN if refused else OK,
        "\n".join(["; ".join([*said, *beside]), *wrong, *refused]),
        todo,
        {variant: {"cases": t.cases, "budget_share": t.share} for variant, t in tried.items()},
    )


def counted(cases: int) -> str:
    return f"{cases} case" if cases == 1 else f"{cases} cases"


def sizes(operator: str, shape: ModelConfig, device: torch.device) -> dict[str, Sizes]:
    """The cases of the model that are small enough, else those of the small model."""
    limit = LARGEST.get(device.type, LARGEST["cpu"])
    cases = BENCHES[operator].cases
    found = {n: own for n, own in cases(shape).items() if nbytes(operator, own) <= limit}
    return found or dict(cases(spec(SMALL)))


def nbytes(operator: str, own: Mapping[str, Any]) -> float:
    made = BENCHES[operator].inputs(Draw("meta"), ROWS, **own)
    return sum(x.nbytes for x in tensors(made).values())
