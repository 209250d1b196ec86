"""Run one experiment: python -m tr.experiment +exp=dflash2_verify [key=value ...]
Run many: python -m tr.experiment -m +sweep=drafts [+exp=NAME] [key=a,b ...]

Exit codes: 0 done and exact (or nothing to compare), 1 not exact, 2 a mistake of the caller,
3 some jobs of a sweep failed, 130 interrupted.
"""

import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from tr import overrides, sweep
from tr.config import Config
from tr.job import console, is_mistake, perform, reset
from tr.progress import reporting
from tr.report import tables
from tr.report.origin import verdict_line

DEMO = "+exp=dflash2_verify"


def run(config: Config, command: str) -> int:
    """Run one job, leave record, report and plots in `config.output`, show them; the exit code."""
    with reporting(config.progress):
        made = perform(config, command)
    show(made)
    print(config.output)
    return sweep.NOT_EXACT if made["verdict"] and not made["verdict"]["exact"] else 0


def show(made: dict[str, Any]) -> None:
    out = console()
    for table in tables.tables(made["figures"]):
        out.print(tables.rich(table))
    for warning in made["warnings"]:
        out.print(f"warning: {warning}", highlight=False, markup=False)
    out.print(verdict_line(made), highlight=False, markup=False)


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
    threads = torch.get_num_threads()
    try:
        if "-h" in args or "--help" in args:
            group = next((arg for arg in args if not arg.startswith("-")), "")
            print(overrides.usage("tr.experiment", group=group))
            return 0
        if not any(arg.startswith(("+exp=", "+sweep=", "run=")) for arg in args):
            args = [DEMO, *args]
        if overrides.is_multirun(args):
            return sweep.run(overrides.read(args), threads)
        sys.argv[1:] = overrides.resolve(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return overrides.MISTAKE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return overrides.INTERRUPTED
    codes: list[int] = []
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # a fault of ours shows its whole traceback
    configs = str(overrides.CONFIGS)
    start = hydra.main(version_base="1.3", config_path=configs, config_name="config")
    try:
        start(lambda config: codes.append(job(config, command, threads)))()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return overrides.INTERRUPTED
    return max(codes, default=0)  # none under --cfg=job


if __name__ == "__main__":
    sys.exit(main())
