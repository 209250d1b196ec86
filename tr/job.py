"""One job: the state of a fresh process, an experiment's run, its record, report and plots."""

import gc
import importlib
import random
import traceback
from dataclasses import asdict, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from rich.console import Console

from tr.config import Config, unknown
from tr.report import pages, record
from tr.report.machine import ROOT, describe
from tr.report.sweep import RECORD

ROOMS = tuple(ROOT / room for room in ("tr", "kernels", "experiments"))
NOT_SETTINGS = ("output", "progress")  # where a run writes and what it tells change no figure
NoOptions = make_dataclass("NoOptions", [])


def experiment(name: str) -> ModuleType:
    """The module experiments/<name>.py; raises ValueError naming the nearest one."""
    try:
        module = importlib.import_module(f"experiments.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"experiments.{name}":
            raise
        module = None
    if not hasattr(module, "run"):
        files = (ROOT / "experiments").glob("*.py")
        found = [path.stem for path in files if "\ndef run(" in path.read_text(encoding="utf-8")]
        raise ValueError(unknown("no such experiment: run", name, found))
    return module  # type: ignore[return-value]


def reset(config: Config, threads: int) -> None:
    """Give a job the state of a fresh process: `threads` is torch's own thread count."""
    gc.collect()  # what an earlier job held in cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    torch._dynamo.reset()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(config.threads or threads)
    torch.manual_seed(config.seed)
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)


def settings(config: Config) -> dict[str, Any]:
    """What a record keeps of a config; fills the experiment's own defaults into `params`."""
    module = experiment(config.run)
    config.params = asdict(config.options(getattr(module, "Options", NoOptions)))
    return {key: value for key, value in asdict(config).items() if key not in NOT_SETTINGS}


def perform(config: Config, command: str) -> dict[str, Any]:
    """Run one job, leave record, report and plots in `config.output`; the record."""
    folder = Path(config.output)
    if (folder / RECORD).exists():
        raise ValueError(f"{folder} already holds a record; choose another output=FOLDER")
    kept = settings(config)
    device = describe(config.device.resolve(), config.device.read_gb_per_s)
    outcome = experiment(config.run).run(config)
    made = record.build(outcome, config.run, command, kept, config.seed, device)
    record.save(made, folder / RECORD)
    pages.write_report({config.run: made}, folder)
    return made


def is_mistake(error: BaseException) -> bool:
    """Whether `error` is a caller's mistake that our own code found, not a fault of ours."""
    if isinstance(error, FileNotFoundError):
        return True
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return isinstance(error, ValueError) and any(raised_in.is_relative_to(room) for room in ROOMS)


def console() -> Console:
    """Standard output for tables: away from a terminal 140 columns wide."""
    made = Console()
    return made if made.is_terminal else Console(width=140)
