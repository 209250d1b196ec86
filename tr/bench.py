"""Timing that a memory-bound kernel cannot cheat: arguments rotate past the cache, medians count.

On CUDA the calls of one round are captured in one graph and each replay is timed by events, so
neither launches nor Python are in the figures; a CPU is timed round by round with a clock.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tr.tree import map_tensors

CACHES = 5  # how many last-level caches the rotating arguments must fill
MOST_COPIES = 64
CPU_CACHE_BYTES = 2**20  # a nominal size: CPU figures serve tests, not comparisons


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: the median of the rounds, the fastest and the slowest round."""

    us: float
    us_min: float
    us_max: float
    copies: int
    bytes: int  # moved by one call, as its operator counts them

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.us * 1e-3


@dataclass(frozen=True)
class Bench:
    """How to measure an operator.

    `inputs(**case, dtype=..., device=...)` makes the arguments of a call, `nbytes(*arguments)` says
    what the call must move; `cases` are the keyword arguments worth measuring.
    """

    op: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Callable[..., tuple[Any, ...]]
    cases: Sequence[Mapping[str, Any]]
    nbytes: Callable[..., int]

    def measure(
        self,
        case: Mapping[str, Any],
        dtype: torch.dtype,
        device: str,
        op: Callable[..., Any] | None = None,
        rounds: int = 20,
        cold_bytes: int | None = None,
    ) -> Timing:
        """Time `op` (default: the operator's own) at one case.

        As many copies of the arguments take turns as fill `cold_bytes` (default: CACHES caches), at
        most MOST_COPIES. A mutated argument is mutated copy by copy.
        """
        call = op or self.op
        arguments = self.inputs(**case, dtype=dtype, device=device)
        moved = self.nbytes(*arguments)
        cold = CACHES * cache_bytes(torch.device(device)) if cold_bytes is None else cold_bytes
        copies = min(max(2, math.ceil(cold / max(moved, 1))), MOST_COPIES)
        sets = [arguments] + [map_tensors(torch.clone, arguments) for _ in range(copies - 1)]
        us = time_us([lambda a=a: call(*a) for a in sets], torch.device(device), rounds)
        return Timing(statistics.median(us), min(us), max(us), copies, moved)


def cache_bytes(device: torch.device) -> int:
    """The size of the last-level cache that repeated arguments would sit in."""
    if device.type != "cuda":
        return CPU_CACHE_BYTES
    return torch.cuda.get_device_properties(device).L2_cache_size


def time_us(
    calls: Sequence[Callable[[], Any]], device: torch.device, rounds: int = 20, warmup: int = 3
) -> list[float]:
    """Microseconds per call, one figure per round; a round runs every call once, in order.

    On CUDA a call must not wait for the device: all of them are captured.
    """
    if not calls or rounds < 1:
        raise ValueError(f"time_us: nothing to time in {len(calls)} calls and {rounds} rounds")
    if device.type != "cuda":
        for _ in range(warmup):
            calls[0]()
        return [_clock(calls) for _ in range(rounds)]
    with torch.cuda.device(device):
        graph = capture(calls)
        for _ in range(warmup):
            graph.replay()
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
        for start, end in pairs:
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 / len(calls) for start, end in pairs]


def capture(calls: Sequence[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """One graph of all calls, which have run once before: compilation stays outside."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _clock(calls: Sequence[Callable[[], Any]]) -> float:
    start = time.perf_counter_ns()
    for call in calls:
        call()
    return (time.perf_counter_ns() - start) * 1e-3 / len(calls)
