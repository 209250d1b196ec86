"""What the profiler saw of a step, by operator: scopes around operators, and kernels on a device.

A captured step carries no names. So it runs once eagerly with scopes, where each kernel's launch
falls into its operator's scope; a replay launches the same kernels in the same order.
"""

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, record_function

from kernels.benches import BENCHES
from kernels.registry import Ops

PREFIX = "tr."  # of a scope's name
OTHER = "other"  # launches outside any operator


@dataclass(frozen=True)
class Kernel:
    name: str
    start_ns: int
    end_ns: int

    @property
    def us(self) -> float:
        return (self.end_ns - self.start_ns) * 1e-3


@dataclass(frozen=True)
class Trace:
    """One profiled stretch: scopes and launches on the host, kernels on the device, in order."""

    scopes: tuple[Kernel, ...]
    kernels: tuple[Kernel, ...]
    owners: tuple[str, ...]  # of the kernels: the operator in whose scope each was launched


def wrapped(ops: Ops, around: Callable[[str, Callable], Callable]) -> Ops:
    """`ops` with every operator replaced by `around(name, operator)`."""
    return Ops(**{f.name: around(f.name, getattr(ops, f.name)) for f in fields(Ops)})


def scoped(ops: Ops, user: str = "") -> Ops:
    """Operators that name themselves to the profiler, behind their user's name."""

    def around(name: str, fn: Callable) -> Callable:
        def call(*args):
            with record_function(PREFIX + user + name):
                return fn(*args)

        return call

    return wrapped(ops, around)


def counted(ops: Ops, moved: Counter[str], user: str = "") -> Ops:
    """Operators that add up in `moved` what each call must move; those without a bench count 0."""

    def around(name: str, fn: Callable) -> Callable:
        def call(*args):
            moved[user + name] += BENCHES[name].nbytes(*args) if name in BENCHES else 0
            return fn(*args)

        return call

    return wrapped(ops, around)


def record(call: Callable[[], object], device: torch.device) -> Trace:
    """Profile one call."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    if cuda:
        torch.cuda.synchronize()
    with profile(activities=activities) as profiler:
        call()
        if cuda:
            torch.cuda.synchronize()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    scopes, kernels, launched = [], [], {}
    for event in profiler.profiler.kineto_results.events():
        name, start = event.name(), event.start_ns()
        span = Kernel(name.removeprefix(PREFIX), start, start + event.duration_ns())
        if event.device_type() != DeviceType.CPU:
            if not name.startswith(PREFIX):  # scopes are mirrored onto the device
                kernels.append((span, event.correlation_id()))
        elif name.startswith(PREFIX):
            scopes.append(span)
        elif name.startswith("cu"):  # a call of the CUDA runtime or driver
            launched[event.correlation_id()] = start
    scopes.sort(key=lambda s: s.start_ns)
    kernels.sort(key=lambda k: k[0].start_ns)
    owners = [_owner(scopes, launched.get(i, -1)) for _, i in kernels]
    return Trace(tuple(scopes), tuple(k for k, _ in kernels), tuple(owners))


def launches(call: Callable[[], object], device: torch.device) -> int | None:
    """Kernels, copies and fills that a call puts on a card; None on a CPU."""
    return len(record(call, device).kernels) if device.type == "cuda" else None


def _owner(scopes: Sequence[Kernel], at: int) -> str:
    """The scope that holds a moment; scopes do not nest."""
    i = bisect_right(scopes, at, key=lambda s: s.start_ns) - 1
    return scopes[i].name if i >= 0 and at <= scopes[i].end_ns else OTHER


def owners_of(replay: Sequence[Kernel], eager: Trace) -> list[str]:
    """The operators of a replay's kernels.

    By place where both launched the same kernels in the same order, else by the kernels' names.
    """
    if [k.name for k in replay] == [k.name for k in eager.kernels]:
        return list(eager.owners)
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kernel, owner in zip(eager.kernels, eager.owners, strict=True):
        votes[kernel.name][owner] += 1
    named = {name: count.most_common(1)[0][0] for name, count in votes.items()}
    return [named.get(kernel.name, OTHER) for kernel in replay]


@dataclass(frozen=True)
class Parts:
    """A step's launches and microseconds by operator: medians over the profiled steps."""

    launches: Counter[str]
    us: dict[str, float]


def split(steps: Sequence[Sequence[Kernel]], owners: Sequence[str]) -> Parts:
    """Equal steps, whose spans belong to `owners`."""
    if any(len(spans) != len(owners) for spans in steps):
        seen = sorted({len(spans) for spans in steps})
        raise RuntimeError(f"steps of {len(owners)} launches were seen with {seen}; run it again")
    us: defaultdict[str, float] = defaultdict(float)
    for i, owner in enumerate(owners):
        us[owner] += statistics.median(spans[i].us for spans in steps)
    return Parts(Counter(owners), dict(us))
