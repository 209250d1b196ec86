"""Older versions of a record come from git; without it that is said."""

import subprocess

import pytest

from tests.report.made import made
from tr.report import history, record
from tr.report.__main__ import main
from tr.report.found import one_set
from tr.report.plots.across import progress


def git(folder, *args):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(("git", *who, *args), cwd=folder, check=True, capture_output=True)


def version(day, step_ms, **config):
    one = made("decode", config=config)
    one["utc"] = f"2026-01-0{day}T10:00:00+00:00"
    one["commit"], one["dirty"] = f"{day}" * 40, False
    one["figures"]["contexts"]["0"]["step_ms"] = step_ms
    return one


@pytest.fixture
def kept(tmp_path):
    """Two committed versions, one of another cache between them, and a third not committed."""
    path = tmp_path / "records" / "decode.json"
    path.parent.mkdir()
    git(tmp_path, "init", "-q", "-b", "main")
    other = version(2, 9.0, kv={"format": "fp8"})
    for n, one in enumerate((version(1, 7.0), other, version(3, 6.0))):
        record.save(one, path)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", str(n))
    record.save(version(4, 5.0), path)
    return path


def test_versions_are_sorted_by_time_and_a_plot_keeps_to_one_config(kept):
    found = history.versions(kept)
    assert [one["utc"][8:10] for one in found] == ["01", "02", "03", "04"]
    shown = progress(kept, "contexts.0.step_ms")
    points = [[f"{d * 7}\n01-0{d} 10:00", ms] for d, ms in (("1", 7.0), ("3", 6.0), ("4", 5.0))]
    assert shown.series == {"decode": points}
    git(kept.parent, "commit", "-qam", "the last one")
    assert progress(kept, "contexts.0.step_ms") == shown  # committing changes nothing
    with pytest.raises(ValueError, match="expected a number at the figure contexts.9.step_ms"):
        progress(kept, "contexts.9.step_ms")


def test_the_command_draws_progress(kept, tmp_path, capsys):
    out, figure = tmp_path / "out", "contexts.0.step_ms"
    job = [str(kept), "--progress", figure, "--only", f"progress-decode-{figure}"]
    assert main([*job, "--output", str(out)]) == 0
    assert (out / f"progress-decode-{figure}-dark.svg").exists()
    assert "2222222" not in (out / f"progress-decode-{figure}.plot.json").read_text()


def test_without_history_it_is_said(tmp_path, kept, capsys, monkeypatch):
    lone = tmp_path.parent / f"{tmp_path.name}-lone" / "decode.json"
    record.save(version(1, 7.0), lone)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(lone.parents[1]))
    out = tmp_path / "out"
    assert main([str(lone), "--progress", "contexts.0.step_ms", "--output", str(out)]) == 2
    said = capsys.readouterr().err
    assert "needs the history of the file" in said and "clone the repository whole" in said
    assert not out.exists()
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}", str(shallow))
    with pytest.raises(ValueError, match="or only a part"):
        history.versions(shallow / "records" / "decode.json")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="git, which is not installed"):
        history.git(tmp_path, "status")


def test_records_of_a_revision(kept, monkeypatch):
    monkeypatch.chdir(kept.parents[1])
    (found,) = one_set("HEAD~2:records/decode.json").values()
    assert found == version(1, 7.0) | {"utc": found["utc"]}
    assert list(one_set("HEAD:records")) == ["decode"]
    with pytest.raises(ValueError, match="git ls-tree in .*: fatal: Not a valid object name none"):
        one_set("none:records")
    with pytest.raises(ValueError, match="HEAD:nowhere holds no records"):
        one_set("HEAD:nowhere")


def test_a_figure_by_its_path():
    one = {"figures": {"oracle rate=0.6": {"essay": {"accepted": [0.5, 0.25]}}, "a": {"b": 1}}}
    assert history.figure(one, "oracle rate=0.6.essay.accepted.1") == 0.25
    assert history.figure(one, "a.b") == 1
    assert history.figure(one, "a.c") is None and history.figure(one, "a.b.c") is None
    assert history.figure(one, "oracle rate=0.6.essay.accepted.2") is None
