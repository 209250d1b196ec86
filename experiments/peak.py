"""The most memory that this process held, and since when."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    """Since `forget`, on Linux; elsewhere since the process began."""
    if STATUS.exists():
        return _field("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget() -> int:
    """Start measuring anew, where the system lets; the bytes that are held now."""
    with suppress(OSError):
        RESET.write_text("5")
    return held_bytes()


def held_bytes() -> int:
    """Now, on Linux; elsewhere the most since the process began."""
    return _field("VmRSS") if STATUS.exists() else peak_bytes()


def _field(name: str) -> int:
    line = next(x for x in STATUS.read_text().splitlines() if x.startswith(name))
    return 1024 * int(line.split()[1])
