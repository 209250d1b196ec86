"""A device's own limits, measured where an experiment runs: what its figures are held against.

Each is the best of several rounds, since a limit is what can be reached. Together they take less
than three seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tr.bench import Draw, cache_bytes, time_us

CPU_BYTES = 2**27
CUDA_BYTES = 2**32
CPU_SIDE = 512  # of the square matrices that are multiplied
CUDA_SIDE = 8192
NODES = 600  # of a graph of tiny kernels


def ceilings(device: torch.device) -> dict[str, float]:
    """For a record's `device`: read and copy bandwidth, bf16 matmul rate and, on CUDA, the time of
    one more tiny kernel in a captured graph.
    """
    buffer = _buffer(device)
    found = {
        "read_gb_per_s": _read(buffer),
        "copy_gb_per_s": _copy(buffer),
        "matmul_tflops": matmul_rate(device),
    }
    if device.type == "cuda":
        found["graph_node_us"] = graph_node_us(device)
    return found


def read_gb_per_s(device: torch.device) -> float:
    """The read bandwidth alone; less than two seconds."""
    return _read(_buffer(device))


def wall_gb_per_s(measured: Mapping[str, float], known: float | None) -> float:
    """What a step's bytes are held against: the larger of this run's and the known bandwidth."""
    return max(measured["read_gb_per_s"], known or 0.0)


def matmul_rate(device: torch.device) -> float:
    """TFLOP/s of a large square bf16 product, by the library."""
    n = CUDA_SIDE if device.type == "cuda" else CPU_SIDE
    draw = Draw(device)
    a, b = draw(n, n), draw(n, n)
    out = torch.empty_like(a)
    return 2 * n**3 / _best_us([lambda: torch.mm(a, b, out=out)], device, 5) * 1e-6


def graph_node_us(device: torch.device) -> float:
    """Microseconds per kernel of a captured chain of kernels that do next to nothing."""
    x = torch.ones(16, device=device)
    return _best_us([lambda: x.neg_()] * NODES, device, 10)


def _buffer(device: torch.device) -> Tensor:
    """Random fp32 numbers, many times the last-level cache."""
    size = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    assert size > 8 * cache_bytes(device)
    generator = torch.Generator(device).manual_seed(0)
    return torch.empty(size // 4, device=device).uniform_(generator=generator)


def _read(buffer: Tensor) -> float:
    """GB/s of reading it all for one number per program, or for one number."""
    if buffer.is_cuda and find_spec("triton"):
        from experiments.streaming import programs, read

        out = torch.empty(programs(buffer.device), device=buffer.device)
        return buffer.nbytes / _best_us([lambda: read(buffer, out)], buffer.device, 10) * 1e-3
    out = torch.empty((), device=buffer.device)
    us = _best_us([lambda: torch.sum(buffer, 0, out=out)], buffer.device, 5)
    return buffer.nbytes / us * 1e-3


def _copy(buffer: Tensor) -> float:
    """GB/s of copying one half onto the other, read and written."""
    a, b = buffer.chunk(2)
    return buffer.nbytes / _best_us([lambda: b.copy_(a)], buffer.device, 5) * 1e-3


def _best_us(calls: Sequence[Callable[[], Any]], device: torch.device, rounds: int) -> float:
    return min(time_us(calls, device, rounds, warmup=1))
