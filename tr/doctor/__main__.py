"""Look at a machine and a checkpoint: python -m tr.doctor [key=value ...]

It says what is missing and what that costs. `checks=[memory,checkpoint]` takes some of its checks,
`report=json` prints one JSON object. Nothing is downloaded.

Exit codes: 0 well, perhaps with warnings; 1 something failed; 2 a mistake of the caller.
"""

import os
import sys
import time
from typing import TYPE_CHECKING

from tr.doctor import versions

if TYPE_CHECKING:
    from tr.config import Doctor

WIDTH = 160  # of the table where there is no terminal
FAILED = 1


def run(config: "Doctor") -> int:
    """Every check that `config` names, in order; the exit code."""
    import torch
    from rich.console import Console

    from tr.doctor import checkpoint, exactness, machine, memory, operators, show
    from tr.doctor.finding import guarded
    from tr.progress import track

    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    own = machine.Machine(config)
    checks = {
        "versions": versions.check,
        "device": lambda: machine.check(own),
        "memory": lambda: memory.check(own),
        "checkpoint": lambda: checkpoint.check(own),
        "operators": lambda: operators.check(own),
        "exactness": lambda: exactness.check(own),
        "disk": lambda: machine.disk(own),
        "port": lambda: machine.port(own),
    }
    found, seconds = {}, {}
    for name in track(config.checks or list(checks), "doctor", "checks"):
        began = time.perf_counter()
        found[name] = list(guarded(name, checks[name]))
        seconds[name] = time.perf_counter() - began
    if config.report == "json":
        print(show.as_json(found, seconds))
    else:
        console = Console()
        show.as_table(found, seconds, console if console.is_terminal else Console(width=WIDTH))
    return FAILED if show.overall(found) == "fail" else 0


def main() -> int:
    if lacking := versions.missing():
        print(f"fail: not installed: {', '.join(lacking)}; run pip install -e .", file=sys.stderr)
        return FAILED
    os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub's library is imported
    from tr import overrides
    from tr.progress import reporting

    codes: list[int] = []

    def told(config: "Doctor") -> None:
        with reporting(config.progress):
            codes.append(run(config))

    return overrides.command("tr.doctor", "doctor", told) or max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
