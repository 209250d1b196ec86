"""What a record says of the machine, the versions and the commit that made it."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
GIB = 2**30


def command(*words: str) -> str | None:
    """What a command prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> tuple[str | None, bool]:
    """The commit of this checkout and whether files differ from it; (None, False) outside git.

    A copy of the files without their history may name its commit in TR_COMMIT.
    """
    if named := os.environ.get("TR_COMMIT"):
        return named, False
    return command("git", "rev-parse", "HEAD"), bool(command("git", "status", "--porcelain"))


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "numpy", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _cpu() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "kind": "cpu",
        "name": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _cuda(device: torch.device) -> dict[str, Any]:
    card = torch.cuda.get_device_properties(device)
    found: dict[str, Any] = {
        "kind": "cuda",
        "name": card.name,
        "capability": f"{card.major}.{card.minor}",
        "memory_gib": round(card.total_memory / GIB, 1),
        "multiprocessors": card.multi_processor_count,
    }
    queries = ("driver_version", "power.limit", "clocks.sm", "clocks.mem", "clocks.max.sm")
    index = torch.cuda.current_device() if device.index is None else device.index
    line = command(
        "nvidia-smi",
        f"--id={index}",
        f"--query-gpu={','.join(queries)}",
        "--format=csv,noheader,nounits",
    )
    if line:
        keys = ("driver", "power_limit_w", "clock_sm_mhz", "clock_memory_mhz", "clock_sm_max_mhz")
        found |= dict(zip(keys, (part.strip() for part in line.split(",")), strict=True))
    return found


def describe(device: torch.device, read_gb_per_s: float | None) -> dict[str, Any]:
    """Name and limits of `device`; `read_gb_per_s` is its known ceiling, None where unknown."""
    found = _cuda(device) if device.type == "cuda" else _cpu()
    return {**found, "read_gb_per_s": read_gb_per_s}
