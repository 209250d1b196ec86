"""An experiment that ends as it is told: run=trivial params.end=...; as a script, the command."""

import dataclasses
import os
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch

from tr import experiment, job
from tr.report.record import Outcome, Verdict, write

FAMILY = {"tokens_per_step": 3.5, "accepted_by_position": [0.9, 0.5], "raw_tokens_per_s": 50.0}


@dataclasses.dataclass
class Options:
    end: str = "exact"
    number: int = 0


def run(config):
    o = config.options(Options)
    if o.end == "mistake":
        raise ValueError("prompt too long: 9000 of 8192 tokens")
    if o.end == "no file":
        raise FileNotFoundError("no weights at there")
    if o.end == "fault":
        torch.zeros(2).reshape(3)
    if o.end == "nan":
        return Outcome({"speed": float("nan")})
    if o.end == "interrupt":
        raise KeyboardInterrupt
    if o.number == 3 and "KILL" in os.environ:
        write(Path(config.output) / "part.txt", "half of it")
        os.kill(os.getpid(), signal.SIGKILL)
    torch.set_default_dtype(torch.float64)  # the next job must not see this
    verdict = Verdict(o.end == "exact", 200, None if o.end == "exact" else {"position": 7})
    figures = {"draft": config.draft.strategy, "families": {"essay": FAMILY}, "seed": config.seed}
    return Outcome(figures, verdict, warnings=("fell back",), device={"read_gb_per_s": 20.0})


def module() -> types.ModuleType:
    made = types.ModuleType("experiments.trivial")
    made.run, made.Options = run, Options  # type: ignore[attr-defined]
    return made


def caller(monkeypatch, folder: Path, capsys) -> Callable[..., tuple[int, str, str]]:
    """Calls the command in `folder`: exit code, standard output, standard error."""
    monkeypatch.setitem(sys.modules, "experiments.trivial", module())
    monkeypatch.setattr(job, "ROOMS", ROOMS)
    monkeypatch.chdir(folder)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["experiment", *args])
        code = experiment.main()
        return code, *capsys.readouterr()

    return call


ROOMS = (*job.ROOMS, Path(__file__).parent)  # its mistakes are a caller's as well

if __name__ == "__main__":
    sys.modules["experiments.trivial"] = module()
    sys.exit(experiment.main())
