"""Run one experiment: python -m tr.experiment +exp=dflash2_verify [key=value ...]

Exit codes: 0 done and exact (or nothing to compare), 1 not exact, 2 a mistake of the caller.
"""

import contextlib
import importlib
import os
import random
import shlex
import sys
import traceback
from dataclasses import asdict, make_dataclass
from pathlib import Path
from types import ModuleType

import hydra
import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from tr import overrides
from tr.config import Config, unknown
from tr.report import pages, record, tables
from tr.report.machine import ROOT, describe

ROOMS = tuple(ROOT / room for room in ("tr", "kernels", "experiments"))
DEMO = "+exp=dflash2_verify"
NOT_EXACT = 1
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
    torch._dynamo.reset()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(config.threads or threads)
    torch.manual_seed(config.seed)
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)


def run(config: Config, command: str) -> int:
    """Run one job, leave record, report and plots in `config.output`; the exit code."""
    folder = Path(config.output)
    if (folder / "record.json").exists():
        raise ValueError(f"{folder} already holds a record; choose another output=FOLDER")
    module = experiment(config.run)
    config.params = asdict(config.options(getattr(module, "Options", NoOptions)))
    device = describe(config.device.resolve(), config.device.read_gb_per_s)
    outcome = module.run(config)
    settings = {key: value for key, value in asdict(config).items() if key != "output"}
    made = record.build(outcome, config.run, command, settings, config.seed, device)
    record.save(made, folder / "record.json")
    pages.write_report({config.run: made}, folder)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    for table in tables.tables(made["figures"]):
        console.print(tables.rich(table))
    for warning in made["warnings"]:
        console.print(f"warning: {warning}", highlight=False, markup=False)
    console.print(pages.verdict_line(made), highlight=False, markup=False)
    print(folder)
    return NOT_EXACT if made["verdict"] and not made["verdict"]["exact"] else 0


def is_mistake(error: ValueError | FileNotFoundError) -> bool:
    """Whether `error` is a caller's mistake that our own code found, not a fault of ours."""
    if isinstance(error, FileNotFoundError):
        return True
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return any(raised_in.is_relative_to(room) for room in ROOMS)


def job(config: DictConfig, command: str, threads: int) -> int:
    """One job of Hydra's; an unfinished one leaves no empty folder behind."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        checked: Config = overrides.to_object(config)
        checked.output = str(folder)
        reset(checked, threads)
        return run(checked, command)
    except (ValueError, FileNotFoundError) as error:
        if not is_mistake(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return overrides.MISTAKE
    finally:
        with contextlib.suppress(OSError):  # not empty: the run wrote files
            folder.rmdir()


def main() -> int:
    args = sys.argv[1:]
    command = shlex.join(["python", "-m", "tr.experiment", *args])
    try:
        if "-h" in args or "--help" in args:
            group = next((arg for arg in args if not arg.startswith("-")), "")
            print(overrides.usage("tr.experiment", group=group))
            return 0
        if not any(arg.startswith(("+exp=", "run=")) for arg in args):
            args = [DEMO, *args]
        sys.argv[1:] = overrides.resolve(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return overrides.MISTAKE
    codes: list[int] = []
    threads = torch.get_num_threads()
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # a fault of ours shows its whole traceback
    configs = str(overrides.CONFIGS)
    start = hydra.main(version_base="1.3", config_path=configs, config_name="config")
    try:
        start(lambda config: codes.append(job(config, command, threads)))()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return overrides.INTERRUPTED
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
