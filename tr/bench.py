"""Timing that a memory-bound kernel cannot cheat: arguments rotate past the cache, medians count.

On CUDA the calls of one round are captured in one graph and each replay is timed by events, so
neither launches nor Python are in the figures. Calls that wait for the device cannot be captured:
they are timed as they are launched. A CPU is timed round by round with a clock.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tr.tree import map_tensors, tensors

CACHES = 5  # how many last-level caches the rotating arguments must fill
MOST_COPIES = 320
MOST_BYTES = 16 << 30
CPU_CACHE_BYTES = 2**20  # a nominal size: CPU figures serve tests, not comparisons

Widths = Any  # a model's widths by name, as tr.model.config.ModelConfig has them
Sizes = Mapping[str, Any]


class Draw:
    """Normal random tensors of one seed; on the meta device, shapes alone."""

    def __init__(
        self, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, seed: int = 0
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype
        on = "cpu" if self.device.type == "meta" else self.device
        self.generator = torch.Generator(on).manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """`dtype`: one of floating point, float8 included; None: this draw's own."""
        dtype = dtype or self.dtype
        if self.device.type == "meta":
            return torch.empty(shape, dtype=dtype, device=self.device)
        held = torch.bfloat16 if dtype.itemsize == 1 else dtype
        x = torch.empty(shape, dtype=held, device=self.device)
        return x.normal_(generator=self.generator).to(dtype)

    def scalar(self, value: int | float) -> Tensor:
        """A number on the device: int64, or fp32."""
        dtype = torch.int64 if isinstance(value, int) else torch.float32
        return torch.tensor(value, dtype=dtype, device=self.device)


@dataclass(frozen=True)
class Bench:
    """What to measure an operator on.

    `cases(widths)` names the sizes that a model of these widths calls it with,
    `inputs(draw, rows, **sizes)` makes the arguments of such a call, and `nbytes(*arguments)` says
    what it must move: weights and states once, rows in and out. `meaning(results)` is what variants
    agree on, where they may return different parts of it.
    """

    operator: str
    cases: Callable[[Widths], Mapping[str, Sizes]]
    inputs: Callable[..., list[Any]]
    nbytes: Callable[..., int]
    meaning: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = tuple


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: the median of the rounds, the fastest and the slowest round."""

    us: float
    us_min: float
    us_max: float
    copies: int
    bytes: int  # moved by one call, as its operator counts them
    captured: bool  # False: launches are in the figures

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.us * 1e-3


def measure(
    call: Callable[..., Any],
    arguments: Sequence[Any],
    moved: int,
    device: torch.device,
    rounds: int = 20,
    cold_bytes: int | None = None,
) -> Timing:
    """Time `call(*arguments)`, which must move `moved` bytes.

    As many copies of the arguments take turns as fill `cold_bytes` (default: CACHES caches), at
    most MOST_COPIES, and of arguments larger than what they move no more than fit MOST_BYTES; the
    arguments themselves stay as they are.
    """
    cold = CACHES * cache_bytes(device) if cold_bytes is None else cold_bytes
    held = sum(t.nbytes for t in tensors(arguments).values())
    copies = min(math.ceil(cold / max(moved, 1)), MOST_COPIES, MOST_BYTES // max(held, 1))
    copies = max(2, copies)
    sets = [map_tensors(torch.clone, arguments) for _ in range(copies)]
    calls = [lambda a=a: call(*a) for a in sets]
    captured = device.type == "cuda" and not waits(calls[0])
    us = time_us(calls, device, rounds, captured=captured)
    return Timing(statistics.median(us), min(us), max(us), copies, moved, captured)


def cache_bytes(device: torch.device) -> int:
    """The size of the last-level cache that repeated arguments would sit in."""
    if device.type != "cuda":
        return CPU_CACHE_BYTES
    return torch.cuda.get_device_properties(device).L2_cache_size


def waits(call: Callable[[], Any]) -> bool:
    """Whether `call` makes the host wait for a CUDA device, so that no graph can hold it."""
    call()  # what the first call compiles or loads may wait
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def time_us(
    calls: Sequence[Callable[[], Any]],
    device: torch.device,
    rounds: int = 20,
    warmup: int = 3,
    captured: bool = True,
) -> list[float]:
    """Microseconds per call, one figure per round; a round runs every call once, in order.

    On CUDA all calls of a round are captured in one graph, unless `captured` is False: then a call
    may wait for the device.
    """
    if not calls or rounds < 1:
        raise ValueError(f"time_us: nothing to time in {len(calls)} calls and {rounds} rounds")
    if device.type != "cuda":
        for _ in range(warmup):
            calls[0]()
        return [_clock(calls) for _ in range(rounds)]
    with torch.cuda.device(device):
        play = capture(calls).replay if captured else lambda: [call() for call in calls]
        for _ in range(warmup):
            play()
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
        for start, end in pairs:
            start.record()
            play()
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
