"""Many jobs in one folder: those recorded there are skipped, a launcher of Hydra's runs the others.

A job counts as done by its record.json alone, which is written whole or not at all, after which
nothing touches its folder. Each job holds a lock meanwhile, so that commands that share a folder,
or a process that outlived its command, never run one job at the same time.
"""

import contextlib
import json
import re
import shlex
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from filelock import FileLock, Timeout
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from tr import overrides
from tr.config import Config
from tr.job import console, is_mistake, perform, reset, settings
from tr.progress import Stage, reporting, stage
from tr.report import pages, tables
from tr.report import sweep as report
from tr.report.machine import commit
from tr.report.record import SCHEMA, write
from tr.report.sweep import FAILURE, LOG, MANIFEST, RECORD, Sweep, identity

NOT_EXACT, FAILED = 1, 3
LOCKS = ".locks"
EVERY = 0.5  # seconds between two looks at what is recorded


@dataclass(frozen=True)
class Job:
    folder: Path
    overrides: tuple[str, ...]
    experiment: str
    settings: dict[str, Any]

    @property
    def ended(self) -> bool:
        return (self.folder / RECORD).exists() or (self.folder / FAILURE).exists()


Start = Callable[[TaskFunction, Sequence[Job]], str]


def run(line: overrides.Line, threads: int) -> int:
    """Run a checked command line's jobs, show and write what became of them; the exit code.

    Raises ValueError before the first job, where one is a mistake or the folder another's.
    """
    kept = distinct(line.jobs)
    experiments = sorted({job.config.run for job in line.jobs})
    mine = Sweep(line.sweep, experiments, {}, {})
    folder = Path(line.output or f"outputs/sweep/{mine.title}").expanduser().absolute()
    with launcher(line.engine, folder) as start:
        found = claim(folder, mine)
        jobs = planned(line.jobs, kept, folder, found)
        done = {job.folder.name: found.records.get(job.folder.name) for job in jobs}
        left = [job for job in jobs if done[job.folder.name] is None]
        print(f"{len(jobs)} jobs, {len(jobs) - len(left)} of them recorded in {folder}", flush=True)
        if any(record and record["commit"] != commit()[0] for record in done.values()):
            print("some were recorded at another commit; another output=FOLDER runs them anew")
        for name, record in done.items():
            if record and not (folder / name / "report.md").exists():  # stopped between the two
                pages.write_report({record["experiment"]: record}, folder / name)
        try:
            with reporting(line.jobs[0].config.progress):
                launched(left, start, threads)
        except KeyboardInterrupt:
            ended = sum((job.folder / RECORD).exists() for job in jobs)
            print(
                f"interrupted: {ended} of {len(jobs)} jobs are recorded; the same command goes on",
                file=sys.stderr,
            )
            return overrides.INTERRUPTED
    return finished(jobs, folder)


def distinct(given: Sequence[overrides.Job]) -> dict[str, dict[str, Any]]:
    """Each job's settings by their digits; raises ValueError for twins."""
    kept: dict[str, dict[str, Any]] = {}
    for i, job in enumerate(given):
        own = settings(job.config)
        key = identity(job.config.run, own)
        if key in kept:
            twin = " ".join(given[list(kept).index(key)].overrides)
            raise ValueError(f"{twin} and {' '.join(job.overrides)} (number {i + 1}) are one job")
        kept[key] = own
    return kept


def claim(folder: Path, mine: Sweep) -> Sweep:
    """What `folder` holds, made `mine` if it is new; raises ValueError where it is another's."""
    visible = [p for p in folder.iterdir() if p.name[0] != "."] if folder.is_dir() else []
    if not visible:
        manifest = {"schema": SCHEMA, "sweep": mine.name, "experiments": mine.experiments}
        write(folder / MANIFEST, json.dumps(manifest) + "\n")
    elif not (folder / MANIFEST).exists():
        raise ValueError(f"{folder} holds other files than a sweep's; choose another output=FOLDER")
    found = report.collect(folder)
    if (found.name, found.experiments) != (mine.name, mine.experiments):
        raise ValueError(
            f"{folder} belongs to another sweep: expected {mine.title}, got {found.title};"
            " choose another output=FOLDER"
        )
    return found


def planned(
    given: Sequence[overrides.Job], kept: Mapping[str, dict[str, Any]], folder: Path, found: Sweep
) -> list[Job]:
    """Each job with its folder, <values>-<digits of its settings>, or the one it has already."""
    known = {identity(r["experiment"], r["config"]): name for name, r in found.records.items()}
    common = set.intersection(*(set(job.overrides) for job in given))
    jobs = []
    for job, (key, own) in zip(given, kept.items(), strict=True):
        values = [o.partition("=")[2] for o in job.overrides if o not in common]
        words = re.sub(r"[^\w.]+", "-", " ".join(values) or job.config.run)[:60].strip("-")
        there = (path.name for path in folder.glob(f"*-{key}"))
        name = known.get(key) or next(there, f"{words}-{key}")
        jobs.append(Job(folder / name, job.overrides, job.config.run, own))
    return jobs


def finished(jobs: Sequence[Job], folder: Path) -> int:
    """Show a table of `jobs` and write the folder's report; the exit code."""
    sweep = report.collect(folder)
    whole = {**sweep.records, **sweep.failures}
    made = {job.folder.name: whole[job.folder.name] for job in jobs}
    console().print(tables.rich(report.table(made, sweep.title)))
    print(report.write_report(sweep, folder))
    records = [one for one in made.values() if "verdict" in one]
    if any(record["verdict"] and not record["verdict"]["exact"] for record in records):
        return NOT_EXACT
    return FAILED if len(records) < len(made) else 0


@contextmanager
def counted(jobs: Sequence[Job]) -> Iterator[None]:
    """A stage of progress over `jobs`, wherever they run: those whose folders hold an end count."""
    over = threading.Event()

    def watch(told: Stage) -> None:
        done, last = 0, False
        while not last:
            last = over.wait(EVERY)
            now = sum(job.ended for job in jobs)
            if now > done:
                told.advance(now - done)
                done = now

    with stage("sweep", len(jobs), "jobs") as told:
        watcher = threading.Thread(target=watch, args=(told,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def launched(jobs: Sequence[Job], start: Start, threads: int) -> None:
    """Run `jobs` until each has ended.

    A process that dies may take a launcher's other jobs along: those that had not begun are
    launched again, those that had are failures.
    """
    for job in jobs:
        with contextlib.suppress(Timeout), locked(job.folder, blocking=False):
            shutil.rmtree(job.folder, ignore_errors=True)  # a failure, or what was stopped
    left = list(jobs)
    with counted(jobs):
        while left:
            task = partial(work, total=len(left), threads=threads)
            reason = start(task, left) or "its process ended without a word"
            ended = [job for job in left if job.ended]
            begun = [job for job in left if not job.ended and job.folder.exists()]
            for job in begun or ([] if ended else left):
                fail(job, reason, "")
            left = [job for job in left if not job.ended]


@contextmanager
def launcher(engine: Sequence[str], folder: Path) -> Iterator[Start]:
    """Hydra's launcher as `engine` sets it: hand it a task and jobs; what it complained of."""
    place = f"hydra.sweep.dir={overrides.literal(str(folder))}"
    with hydra.initialize_config_dir(str(overrides.CONFIGS), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        config = loader.load_configuration("config", [*engine, place], RunMode.MULTIRUN)
        context = HydraContext(config_loader=loader, callbacks=Callbacks())
        if Plugins.is_in_toplevel_plugins_module(config.hydra.launcher["_target_"]):
            made = Plugins.instance().instantiate_launcher(context, work, config)
        else:
            made = hydra.utils.instantiate(config.hydra.launcher)

        def start(task: TaskFunction, jobs: Sequence[Job]) -> str:
            made.setup(hydra_context=context, task_function=task, config=config)
            own = [[*j.overrides, f"hydra.sweep.subdir={j.folder.name}"] for j in jobs]
            try:
                for ended in made.launch(own, initial_job_idx=0):
                    _ = ended.return_value  # raises what kept a job from leaving a failure
            except Exception as error:  # or of a launcher's own kind: a worker died, say
                return f"{type(error).__name__}: {error}"
            return ""

        yield start


def work(config: DictConfig, total: int, threads: int) -> None:
    """One job, in whichever process a launcher calls it; leaves a record or a failure."""
    engine = HydraConfig.get()
    folder, given = Path(engine.runtime.output_dir), tuple(engine.overrides.task)
    place = f"{engine.job.num + 1}/{total}"
    with locked(folder):
        if (folder / RECORD).exists():  # by another command
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        checked: Config = overrides.to_object(config)
        checked.output = str(folder)
        job = Job(folder, given, checked.run, settings(checked))
        print(f"{place} {' '.join(map(typed, given))}", file=sys.stderr, flush=True)
        try:
            reset(checked, threads)
            end = report.outcome(perform(checked, command(given)))
        except Exception as error:
            reason = str(error) if is_mistake(error) else f"{type(error).__name__}: {error}"
            end = report.outcome(fail(job, reason, traceback.format_exc()))
        finally:
            if not job.ended:
                shutil.rmtree(folder, ignore_errors=True)
        print(f"{place} {end}", file=sys.stderr, flush=True)


def locked(folder: Path, blocking: bool = True) -> FileLock:
    """A job's lock, which its process's end opens as well."""
    locks = folder.parent / LOCKS
    locks.mkdir(exist_ok=True)
    return FileLock(locks / folder.name, blocking=blocking)


def fail(job: Job, reason: str, log: str) -> dict[str, Any]:
    """Leave a failure in a job's folder: why, what it was, and the traceback as a log."""
    made = {
        "schema": SCHEMA,
        "experiment": job.experiment,
        "command": command(job.overrides),
        "config": job.settings,
        "commit": commit()[0],
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "reason": reason,
    }
    write(job.folder / LOG, log or f"{reason}\n")
    write(job.folder / FAILURE, json.dumps(made, indent=2, ensure_ascii=False) + "\n")
    return made


def typed(override: str) -> str:
    """An override as a command line takes it."""
    return override.removeprefix("++")


def command(given: Sequence[str]) -> str:
    """The command that runs one job alone."""
    return shlex.join(["python", "-m", "tr.experiment", *map(typed, given)])
