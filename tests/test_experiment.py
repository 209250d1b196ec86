"""The command: what a run leaves behind, what it prints last, and how it ends."""

import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from tests import trivial
from tr import job
from tr.report import record
from tr.report.machine import ROOT


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    return trivial.caller(monkeypatch, tmp_path, capsys)


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_run_leaves_a_whole_record(command, tmp_path):
    code, out, _ = command("run=trivial", "draft=lookup", "seed=3")
    folder = Path(out.splitlines()[-1])
    assert code == 0 and folder.parent == tmp_path / "outputs" / "trivial"
    assert files(folder) == ["record.json", "report.md"]
    made = record.load(folder / "record.json")
    assert list(made) == list(record.KEYS)
    assert made["config"]["draft"] == {
        "strategy": "lookup", "tokens": 7, "ngram_min": 2, "ngram_max": 4,
    }  # fmt: skip
    assert made["config"]["params"] == {"end": "exact", "number": 0}
    assert "output" not in made["config"]
    assert made["command"] == "python -m tr.experiment run=trivial draft=lookup seed=3"
    assert made["seed"] == 3 and made["figures"]["seed"] == 3
    assert made["device"]["read_gb_per_s"] == 20.0 and made["device"]["name"]
    assert made["versions"]["torch"] == torch.__version__
    assert made["verdict"] == {"exact": True, "compared_tokens": 200, "first_divergence": None}
    assert made["warnings"] == ["fell back"]
    assert "3.50" in out and "warning: fell back" in out and "200 tokens compared" in out


def test_not_exact_is_recorded_and_ends_with_1(command):
    code, out, _ = command("run=trivial", "params.end=differs")
    assert code == 1 and "NOT exact" in out and "{'position': 7}" in out
    made = record.load(Path(out.splitlines()[-1]) / "record.json")
    assert made["verdict"]["first_divergence"] == {"position": 7}


@pytest.mark.parametrize(
    "args, message",
    [
        (["run=trivial", "params.end=mistake"], "prompt too long: 9000 of 8192 tokens"),
        (["run=trivial", "params.end=no file"], "no weights at there"),
        (["run=trivial", "params.end=nan"], "figure speed is nan"),
        (["run=trivial", "params.ende=x"], "'ende'; did you mean 'end'"),
        (["run=trivial", "device=h200"], "device=h200 needs a CUDA card"),
        (["run=train_tinny"], "run 'train_tinny'; did you mean 'train_tiny"),
        (["+exp=dflash2_verfy"], "did you mean 'dflash2_verify'"),
        (["run=trivial", "draft.windw=3"], "did you mean 'window'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_files(command, tmp_path, args, message):
    if torch.cuda.is_available() and "device=h200" in args:
        pytest.skip("there is a card")
    code, out, err = command(*args)
    assert code == 2 and message in err
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert files(tmp_path) == []


def test_a_fault_of_ours_shows_its_traceback(command, tmp_path):
    with pytest.raises(RuntimeError, match="shape"):
        command("run=trivial", "params.end=fault")
    assert files(tmp_path) == []


def test_a_record_is_never_overwritten(command, tmp_path):
    args = ("run=trivial", "output=a folder=1")
    assert command(*args)[0] == 0
    before = (tmp_path / "a folder=1" / "record.json").read_bytes()
    code, _, err = command(*args)
    assert code == 2 and "already holds a record" in err
    assert (tmp_path / "a folder=1" / "record.json").read_bytes() == before


def test_reset_gives_a_fresh_state():
    config = types.SimpleNamespace(seed=5, threads=0)
    draws = []
    for _ in range(2):
        torch.set_default_dtype(torch.float64)
        job.reset(config, threads=1)  # type: ignore[arg-type]
        draws.append(torch.randn(3))
    assert torch.equal(*draws) and draws[0].dtype == torch.float32
    assert torch.get_num_threads() == 1


def test_as_a_process():
    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tr.experiment", *args]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    shown = call("--help")
    assert shown.returncode == 0 and "dflash2_verify" in shown.stdout
    refused = call("draft=dflash")
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr.startswith("error: unknown draft 'dflash'; did you mean 'dflash2'?")
