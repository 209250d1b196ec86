"""A device's own limits, measured where an experiment runs: what its figures are held against."""

import statistics

import torch

from tr.bench import cache_bytes, time_us

CPU_BYTES = 2**28
CUDA_BYTES = 2**32


def read_bandwidth(device: torch.device, rounds: int = 10) -> float:
    """GB/s of reading a buffer many times the last-level cache, by a reduction to one number."""
    size = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    assert size > 8 * cache_bytes(device)
    generator = torch.Generator(device).manual_seed(0)
    buffer = torch.empty(size // 4, device=device).uniform_(generator=generator)
    out = torch.empty((), device=device)
    us = time_us([lambda: torch.sum(buffer, 0, out=out)], device, rounds)
    return size / statistics.median(us) * 1e-3
