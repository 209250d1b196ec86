"""Sweeps: every combination once, whatever stops them, by whichever launcher; mistakes first."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests import trivial
from tr import experiment, job, overrides, sweep
from tr.report import record
from tr.report.machine import ROOT
from tr.report.sweep import collect

TWO = ("-m", "run=trivial", "draft=raw,mtp")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A sweep's folder, whole; tests copy it."""
    folder = tmp_path_factory.mktemp("whole") / "there"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "experiments.trivial", trivial.module())
        patch.setattr(sys, "argv", ["experiment", *TWO, "params.number=5", f"output={folder}"])
        assert experiment.main() == 0
    return folder


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    return trivial.caller(monkeypatch, tmp_path, capsys)


def bytes_of(folder: Path) -> dict[str, bytes]:
    inside = (p for p in folder.rglob("*") if p.is_file() and ".locks" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() for p in inside}


def times_of(folder: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in folder.glob("*/record.json")}


def test_every_combination_once_and_never_again(command, tmp_path):
    args = ("-m", "run=trivial", "draft=raw,mtp", "seed=1,2", "params.number=4")
    code, out, err = command(*args)
    assert code == 0 and "4 jobs, 0 of them recorded" in out and "4/4 exact" in err
    folder = tmp_path / "outputs" / "sweep" / "trivial"
    records = collect(folder).records
    pairs = {(r["config"]["draft"]["strategy"], r["seed"]) for r in records.values()}
    assert len(records) == len(pairs) == 4
    assert {r["figures"]["draft"] for r in records.values()} == {"raw", "mtp"}
    assert {name.rpartition("-")[0] for name in records} >= {"raw-1", "mtp-2"}
    assert (folder / "report.md").read_text().count("| exact |") == 4
    shown = next(line for line in out.splitlines() if "mtp" in line and " 2 " in line)
    assert "3.50" in shown and "50.00" in shown and "exact" in shown

    before = bytes_of(folder)
    code, out, err = command(*args)
    assert code == 0 and "4 jobs, 4 of them recorded" in out and err == ""
    assert bytes_of(folder) == before
    times = times_of(folder)
    code, out, err = command("-m", "run=trivial", "draft=raw,chain", "seed=2", "params.number=4")
    assert "2 jobs, 1 of them recorded" in out and "1/1 exact" in err
    assert len(collect(folder).records) == 5 and times_of(folder).items() > times.items()


def test_a_job_s_command_runs_it_alone(two):
    names = {r["command"] for r in collect(two).records.values()}
    assert "python -m tr.experiment draft=mtp run=trivial params.number=5" in names


def test_failures_are_recorded_and_tried_again(command, tmp_path, monkeypatch):
    args = ("-m", "run=trivial", "params.end=exact,fault,mistake", "output=there")
    code, out, err = command(*args)
    assert code == sweep.FAILED
    assert "failed: prompt too long: 9000 of 8192 tokens" in out
    found = collect(tmp_path / "there")
    reasons = {f["config"]["params"]["end"]: f["reason"] for f in found.failures.values()}
    assert len(found.records) == 1 and set(reasons) == {"fault", "mistake"}
    assert reasons["fault"].startswith("RuntimeError: ")
    name = next(n for n, f in found.failures.items() if f["config"]["params"]["end"] == "fault")
    assert (
        "in run\n    torch.zeros(2).reshape(3)"
        in (tmp_path / f"there/{name}/failure.log").read_text()
    )
    assert f"**{name}** failed" in (tmp_path / "there/report.md").read_text()

    before = times_of(tmp_path / "there")
    module = trivial.module()
    module.run = lambda config: trivial.run(config_with(config, "exact"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "experiments.trivial", module)
    code, out, err = command(*args)
    assert code == 0 and "3 jobs, 1 of them recorded" in out and "2/2 exact" in err
    found = collect(tmp_path / "there")
    assert len(found.records) == 3 and not found.failures
    assert times_of(tmp_path / "there").items() >= before.items()


def config_with(config, end):
    config.params["end"] = end
    return config


def test_not_exact_outweighs_a_failure(command):
    code, out, _ = command("-m", "run=trivial", "params.end=differs,fault", "output=there")
    assert code == sweep.NOT_EXACT and "NOT exact" in out


def test_an_interrupt_leaves_whole_jobs_only(command, tmp_path):
    code, out, err = command("-m", "run=trivial", "params.end=exact,interrupt,differs", "output=x")
    assert code == overrides.INTERRUPTED and "1 of 3 jobs are recorded" in err
    assert len([p for p in (tmp_path / "x").iterdir() if p.is_dir() and p.name[0] != "."]) == 1


def test_killed_in_the_middle(tmp_path):
    def call(**env: str) -> subprocess.CompletedProcess[str]:
        args = ("-m", "run=trivial", "params.number=2,3,4", f"output={tmp_path / 'there'}")
        command = [sys.executable, "tests/trivial.py", *args]
        whole = {**os.environ, "PYTHONPATH": str(ROOT), **env}
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=whole)

    assert call(KILL="1").returncode == -signal.SIGKILL
    left = [p for p in (tmp_path / "there").rglob("part.txt") if p.is_file()]
    assert len(left) == 1 and not (left[0].parent / "record.json").exists()
    before = times_of(tmp_path / "there")
    assert len(before) == 1
    again = call()
    assert again.returncode == 0 and "3 jobs, 1 of them recorded" in again.stdout
    after = times_of(tmp_path / "there")
    assert len(after) == 3 and after.items() >= before.items() and not left[0].exists()


def test_a_job_that_another_process_runs_is_waited_for(command, two, tmp_path):
    shutil.copytree(two, tmp_path / "there")
    folder = next(p for p in (tmp_path / "there").iterdir() if p.name.startswith("mtp-"))
    shutil.copytree(folder, tmp_path / "copy")
    (folder / "record.json").unlink()

    def elsewhere(task, jobs):  # the other process ends while this one's job waits
        assert (folder / "report.md").exists()  # still its own: not cleared away
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "perform", None)  # nothing may run here
            lock.release()
            shutil.copy(tmp_path / "copy" / "record.json", folder)
            return real(task, jobs)

    lock = FileLock(tmp_path / "there" / sweep.LOCKS / folder.name)
    lock.acquire()
    with sweep.launcher([], tmp_path / "there") as real:
        found = collect(tmp_path / "there")
        line = overrides.read([*TWO, "params.number=5"])
        jobs = sweep.planned(line.jobs, sweep.distinct(line.jobs), tmp_path / "there", found)
        left = [one for one in jobs if one.folder == folder]
        sweep.launched(left, elsewhere, 1)
    assert collect(tmp_path / "there").failures == {}


def test_a_launcher_that_dies_loses_only_what_had_begun(command, tmp_path, monkeypatch):
    rounds = []
    real = sweep.launcher

    def dying(engine, folder):
        manager = real(engine, folder)
        start = manager.__enter__()

        def first(task, jobs):
            rounds.append(len(jobs))
            if len(rounds) > 1:
                return start(task, jobs)
            start(task, jobs[:1])
            jobs[1].folder.mkdir()
            return "WorkerDied: killed by signal 9"

        class Context:
            __enter__ = staticmethod(lambda: first)
            __exit__ = staticmethod(manager.__exit__)

        return Context

    monkeypatch.setattr(sweep, "launcher", lambda *args: dying(*args)())
    code, out, _ = command(*TWO, "seed=1,2", "output=there")
    found = collect(tmp_path / "there")
    assert code == sweep.FAILED and rounds == [4, 2] and len(found.records) == 3
    assert [f["reason"] for f in found.failures.values()] == ["WorkerDied: killed by signal 9"]


@pytest.mark.parametrize(
    "args, parts",
    [
        (["-m", "+sweep=kernel"], ["sweep 'kernel'", "did you mean 'kernels'"]),
        (["-m", "+sweep=kv", "+sweep=quant"], ["expected one sweep"]),
        (["-m", "+sweep=kv", "max_new_token=1,2"], ["'max_new_token'", "mean 'max_new_tokens'"]),
        ([*TWO, "params.numbr=1,2"], ["'numbr'; did you mean 'number'"]),
        ([*TWO, "params.number=1,x"], ["params.number", "'x'"]),
        ([*TWO, "seed="], ["seed= gives no value"]),
        ([*TWO, "seed=range(3,3)"], ["seed=range(3,3)", "is an empty axis"]),
        ([*TWO, "seed=1,,2"], ["cannot read 'seed=1,,2'"]),
        ([*TWO, "draft="], ["unknown draft ''"]),
        ([*TWO, "kv=glob(*)"], ["write the values out"]),
        ([*TWO, "seed=interval(0,1)"], ["write the values out"]),
        ([*TWO, "seed=1,1"], ["are one job"]),
        ([*TWO, "hydra/launcher=jobli"], ["'jobli'; did you mean 'joblib'"]),
        ([*TWO, "hydra.launcher.n=3", "hydra/launcher=joblib"], ["hydra.launcher.n"]),
        ([*TWO, "hydra/sweeper=basic"], ["output=FOLDER"]),
        ([*TWO, "--cfg=job"], ["leave out -m"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_mistakes_come_before_the_first_job(command, tmp_path, args, parts):
    code, out, err = command(*args)
    assert code == overrides.MISTAKE and err.count("\n") == 1
    for part in parts:
        assert part in err
    assert out == "" and list(tmp_path.iterdir()) == []


def test_a_launcher_that_is_not_installed(command, monkeypatch):
    monkeypatch.setitem(overrides.LAUNCHERS, "ray", ("ray-not-there", ""))
    code, _, err = command(*TWO, "hydra/launcher=ray")
    assert code == overrides.MISTAKE and "needs the package ray-not-there; pip install" in err


def cut(folder: Path) -> None:
    path = next(folder.glob("*/record.json"))
    path.write_text(path.read_text()[:100])


def newer(folder: Path) -> None:
    path = next(folder.glob("*/record.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))


def twice(folder: Path) -> None:
    made = next(folder.glob("*/record.json")).parent
    shutil.copytree(made, folder / "again")


def other(folder: Path) -> None:
    manifest = {"schema": record.SCHEMA, "sweep": "kv", "experiments": ["decode"]}
    (folder / "sweep.json").write_text(json.dumps(manifest))


def no_manifest(folder: Path) -> None:
    (folder / "sweep.json").unlink()


def cut_manifest(folder: Path) -> None:
    (folder / "sweep.json").write_text('{"schema": 1')


@pytest.mark.parametrize(
    "damage, parts",
    [
        (cut, ["record.json is not whole JSON", "move"]),
        (newer, ["record.json has record schema 99, expected 1"]),
        (twice, ["holds one job twice", "again"]),
        (other, ["another sweep: expected trivial, got kv-decode", "output=FOLDER"]),
        (no_manifest, ["holds other files than a sweep's"]),
        (cut_manifest, ["sweep.json is not whole JSON"]),
    ],
)
def test_a_folder_that_is_damaged_or_another_s_stays_as_it_is(
    command, two, tmp_path, damage, parts
):
    shutil.copytree(two, tmp_path / "there")
    damage(tmp_path / "there")
    before = bytes_of(tmp_path / "there")
    code, _, err = command("-m", "run=trivial", "draft=raw,chain", "output=there")
    assert code == overrides.MISTAKE and err.count("\n") == 1
    for part in parts:
        assert part in err
    assert bytes_of(tmp_path / "there") == before


@pytest.mark.parametrize("name", overrides.choices("sweep"))
def test_every_sweep_composes(name):
    large = ("model=qwen3_8_27b", "weights=random", "device=h200")
    jobs = overrides.read(["-m", f"+sweep={name}", *large]).jobs
    kept = [job.settings(one.config) for one in jobs]
    assert len({json.dumps(one, sort_keys=True) for one in kept}) == len(kept) >= 2
    assert {(one["model"]["name"], one["device"]["name"]) for one in kept} == {
        ("qwen3_8_27b", "h200")
    }


def test_the_command_line_replaces_an_axis():
    def strategies(*args: str) -> list[str]:
        return [one.config.draft.strategy for one in overrides.read(["-m", *args]).jobs]

    assert strategies("+sweep=drafts", "draft=mtp,raw") == ["mtp", "raw"]
    another = overrides.read(["-m", "+sweep=backends", "+exp=spec_exact", "seed=1,2"]).jobs
    assert [one.config.run for one in another] == ["spec_exact"] * 4  # decode's options are gone
    assert not another[0].config.params


SMALL = (
    "-m", "+sweep=kernels", "kernel=reference,tile", "draft=lookup", "prompts=essay", "device=cpu",
    "max_new_tokens=4", "params.sampled_tokens=2",
)  # fmt: skip


def token_exact(folder: Path) -> dict[str, tuple]:
    """What does not depend on the time it took."""
    return {
        name: (
            r["config"],
            r["verdict"],
            r["command"],
            r["figures"]["families"]["essay"]["tokens_per_step"],
        )
        for name, r in collect(folder).records.items()
    }


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "there"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiment", *SMALL, f"output={folder}"])
        assert experiment.main() == 0
    return token_exact(folder)


@pytest.mark.parametrize("name", ["joblib", "submitit_local", "ray"])
def test_launchers_leave_the_same_records(one_by_one, name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    args = [*SMALL, f"hydra/launcher={name}", f"output={tmp_path / 'there'}"]
    args += ["hydra.launcher.n_jobs=1"] if name == "joblib" else []
    monkeypatch.setattr(sys, "argv", ["experiment", *args])
    assert experiment.main() == 0
    found = token_exact(tmp_path / "there")
    assert found == one_by_one and len(found) == 2
