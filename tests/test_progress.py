"""Stages: JSON lines, bars, silence; nested, broken off, and with standard error gone."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tr import progress
from tr.bars import Bars
from tr.progress import MODES, reporting, stage, track

ROOT = Path(__file__).parents[1]
KEYS = ["stage", "state", "done", "total", "unit", "rate", "seconds_remaining"]


@pytest.fixture
def lines(capsys):
    """JSON lines of standard error; standard output stays empty."""

    def read():
        out, err = capsys.readouterr()
        assert out == ""
        return [json.loads(line) for line in err.splitlines()]

    return read


@pytest.fixture
def eager(monkeypatch):
    """Every advance is told."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "LINES", 0.0)


def run(code, **env):
    clean = {k: v for k, v in os.environ.items() if k != "TR_PROGRESS"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_stage_in_json_lines(lines, eager):
    with reporting("json"):
        assert list(track(["a", "b"], "letters", "glyphs")) == ["a", "b"]
    told = lines()
    assert all(list(line) == KEYS for line in told)
    assert [(line["state"], line["done"]) for line in told] == [
        ("begun", 0), ("running", 1), ("running", 2), ("done", 2),
    ]  # fmt: skip
    assert {(line["stage"], line["total"], line["unit"]) for line in told} == {
        ("letters", 2, "glyphs")
    }
    assert told[0]["rate"] is None and told[0]["seconds_remaining"] is None
    assert told[1]["rate"] > 0 and told[1]["seconds_remaining"] >= 0
    assert told[-1]["seconds_remaining"] == 0


def test_a_rate_is_that_of_the_last_lines(lines, eager, monkeypatch):
    clock = iter(range(1000))
    fake = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(progress, "time", fake)
    with reporting("json"), stage("work", total=400, unit="bytes") as work:
        for _ in range(100):
            work.advance(2)
        for _ in range(40):
            work.advance(4)
    told = lines()
    seconds = 3  # of a fake clock: an advance, its line's age and the line itself
    assert told[100]["rate"] == pytest.approx(2 / seconds, rel=0.01)
    assert told[140]["rate"] == pytest.approx(4 / seconds, rel=0.01)
    left = (400 - told[140]["done"]) / told[140]["rate"]
    assert told[140]["seconds_remaining"] == pytest.approx(left, abs=0.1)


def test_nested_stages_and_what_is_not_to_be_told(lines, eager):
    with reporting("json"), stage("outer", unit="parts") as outer:
        with stage("inner", 1), stage("secret", told=False) as secret:
            secret.advance()
        outer.advance(name="outer, later")
    told = [(line["stage"], line["state"]) for line in lines()]
    assert told == [
        ("outer", "begun"), ("inner", "begun"), ("inner", "done"), ("outer, later", "running"),
        ("outer, later", "done"),
    ]  # fmt: skip


def test_work_that_ends_early_is_stopped(lines):
    with reporting("json"):
        with pytest.raises(RuntimeError), stage("broken", 2):
            raise RuntimeError
        for _ in track(range(5), "left"):
            break
    told = [(line["stage"], line["state"], line["done"]) for line in lines()]
    assert told == [
        ("broken", "begun", 0), ("broken", "stopped", 0), ("left", "begun", 0),
        ("left", "stopped", 0),
    ]  # fmt: skip


def test_lines_are_few_and_an_advance_is_cheap(lines):
    with reporting("json"):
        began = time.perf_counter()
        for _ in track(range(100_000), "many"):
            pass
        took = time.perf_counter() - began
    assert len(lines()) <= 3 + took / progress.LINES
    assert took < 2.0  # 20 us each, on a busy machine


def test_nothing_is_told_without_a_command_and_in_its_threads(lines, monkeypatch):
    monkeypatch.delenv("TR_PROGRESS", raising=False)
    assert list(track(range(3), "x")) == [0, 1, 2]
    with reporting("quiet"):
        list(track(range(3), "x"))
    with reporting("json"):
        other = threading.Thread(target=lambda: list(track(range(3), "x")))
        other.start()
        other.join()
    with reporting("auto"):  # no terminal here
        list(track(range(3), "x"))
    assert lines() == []


def test_the_variable_speaks_where_no_command_does(lines, monkeypatch):
    monkeypatch.setenv("TR_PROGRESS", "json")
    list(track(range(3), "alone"))
    with reporting("auto"):
        list(track(range(3), "auto"))
    with reporting("quiet"):
        list(track(range(3), "quiet"))
    assert {line["stage"] for line in lines()} == {"alone", "auto"}
    monkeypatch.setenv("TR_PROGRESS", "loud")
    with pytest.raises(ValueError, match="TR_PROGRESS=loud: expected auto, bars, quiet or json"):
        list(track(range(3), "x"))


def test_bars_stay_of_outer_stages_alone(capsys):
    with reporting("bars"):
        for _ in track(range(3), "outer [stage]", "parts"):
            with stage("inner", 2_500_000, "bytes") as inner:
                inner.advance(2_500_000)
        with stage("later", unit="tokens") as later:
            later.advance(5)
    out, err = capsys.readouterr()
    assert out == "" and "outer [stage]" in err and "3/3" in err and "5/?" in err
    assert "inner" not in err


def test_bars_move_on_a_terminal(monkeypatch):
    class Terminal:
        closed = False
        encoding = "utf-8"
        text = ""

        def write(self, text):
            self.text += text
            return len(text)

        def flush(self):
            pass

        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("TR_PROGRESS", raising=False)
    with reporting("auto"), stage("loading", 5_000_000, "bytes") as loading:
        for _ in range(2):
            time.sleep(0.15)
            loading.advance(2_500_000)
    assert "loading" in screen.text and "5.0 MB/5.0 MB" in screen.text and "MB/s" in screen.text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gone", ["none", "closed", "broken"])
def test_standard_error_may_be_gone(monkeypatch, capsys, mode, gone):
    class Broken:
        closed = False

        def isatty(self):
            return gone == "broken"

        def write(self, text):
            raise BrokenPipeError if gone == "broken" else ValueError("closed")

        def flush(self):
            self.write("")

    stream = Broken()
    stream.closed = gone == "closed"
    monkeypatch.setattr(sys, "stderr", None if gone == "none" else stream)
    progress._listener.cache_clear()
    try:
        with reporting(mode):
            for _ in track(range(2), "outer"):
                assert list(track(range(3), "inner")) == [0, 1, 2]
    finally:
        progress._listener.cache_clear()
    assert capsys.readouterr().out == ""


def test_rich_is_not_loaded_where_no_bar_is_asked_for():
    code = "import sys, tr.progress as p\nwith p.reporting('json'): list(p.track([1], 'x'))\n"
    done = run(code + "print([m for m in sys.modules if m.split('.')[0] in ('rich', 'torch')])")
    assert done.stdout == "[]\n" and done.stderr.count('"stage": "x"') == 2


def test_a_command_tells_of_loading_and_prefill(tmp_path):
    args = ["prefill.chunk_tokens=64", "max_new_tokens=2", "draft=raw", "progress=json"]
    prompt = "prompt=" + "the quick brown fox " * 40
    done = subprocess.run(
        [sys.executable, "-m", "tr.generate", prompt, "chat=false", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "stage" not in done.stdout
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    last = {line["stage"]: line for line in told if line["state"] == "done"}
    loading = last["loading"]
    assert loading["unit"] == "bytes" and loading["done"] == loading["total"] > 2e7
    prefill = last["prefill"]
    assert prefill["unit"] == "tokens" and prefill["done"] == prefill["total"] > 64


def test_listeners_hold_nothing_between_stages():
    bars = Bars()
    made = progress.Stage("x", 1, "steps", bars)
    bars.begin(made)
    bars.end(made, True)
    assert bars.shown is None and not bars.tasks and not bars.outer
