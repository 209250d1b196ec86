"""The set-up script: what it announces, when it does nothing, how it refuses."""

import importlib.util
import json
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "tools" / "environment.py"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """The script as a module, with its environment in an empty folder."""
    spec = importlib.util.spec_from_file_location("environment", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("TORCH", raising=False)
    monkeypatch.delenv("UV_TORCH_BACKEND", raising=False)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "environment.json")
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    return module


def test_announcement_names_tool_build_and_size(tool, monkeypatch):
    want = tool.wanted()
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert "with pip: torch>=2.11" in tool.plan(None, want) and "3 GB" in tool.plan(None, want)
    assert "with uv: torch>=2.11, its CPU build, about 0.2 GB" in tool.plan("uv", want)
    monkeypatch.setattr(tool.shutil, "which", lambda name: name)
    assert "its CUDA build, about 3 GB" in tool.plan("uv", want)
    monkeypatch.setenv("TORCH", "torch==2.13.0+cpu")
    assert "torch==2.13.0+cpu, its CPU build" in tool.plan(None, tool.wanted("dev"))
    sizes = {(): "0.1", ("dev",): "0.3", ("dev", "notebooks"): "0.4"}
    for extras, size in sizes.items():
        assert f"other packages about {size} GB" in tool.plan(None, tool.wanted(*extras))


def test_a_stamp_serves_what_it_covers(tool, monkeypatch):
    assert not tool.is_current(tool.wanted())
    (tool.VENV / "bin").mkdir(parents=True)
    (tool.VENV / "bin" / "python").touch()
    monkeypatch.setenv("TORCH", "torch==2.13.0")
    tool.STAMP.write_text(json.dumps(tool.wanted()))
    assert tool.is_current(tool.wanted())
    assert not tool.is_current(tool.wanted("dev"))
    tool.STAMP.write_text(json.dumps(tool.wanted("dev")))
    monkeypatch.delenv("TORCH")
    assert tool.is_current(tool.wanted()) and tool.is_current(tool.wanted("dev"))
    monkeypatch.setenv("TORCH", "torch==2.12.0")
    assert not tool.is_current(tool.wanted("dev"))
    monkeypatch.delenv("TORCH")
    tool.STAMP.write_text(json.dumps({**tool.wanted("dev"), "pyproject": "older"}))
    assert not tool.is_current(tool.wanted("dev"))
    tool.STAMP.write_text("{")
    assert not tool.is_current(tool.wanted("dev"))


def test_an_environment_keeps_the_extras_that_it_has(tool):
    (tool.VENV / "bin").mkdir(parents=True)
    (tool.VENV / "bin" / "python").touch()
    tool.STAMP.write_text(json.dumps(tool.wanted("dev")))
    both = tool.wanted("notebooks")
    assert both["extras"] == ["dev", "notebooks"] and not tool.is_current(both)
    tool.STAMP.write_text(json.dumps(both))
    assert all(tool.is_current(tool.wanted(*extra)) for extra in ((), ("dev",), ("notebooks",)))


def test_an_old_python_is_refused_by_name(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit):
        tool.interpreter()
    assert "3.11 or newer is needed, or uv" in capsys.readouterr().err
    monkeypatch.setattr(tool.shutil, "which", lambda name: f"/bin/{name}")
    assert tool.interpreter() == "/bin/python3.14"


def test_a_missing_ensurepip_is_named_with_its_remedy(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool, "works", lambda python, code: False)
    with pytest.raises(SystemExit):
        tool.create(None)
    assert "apt install python3-venv; or install uv" in capsys.readouterr().err
    assert not tool.STAMP.exists()


def test_a_failed_install_leaves_no_stamp(tool, monkeypatch):
    def stop(*command, **environment):
        raise KeyboardInterrupt

    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    monkeypatch.setattr(tool, "create", lambda uv: None)
    monkeypatch.setattr(tool, "run", stop)
    monkeypatch.setattr(tool.sys, "argv", ["environment.py"])
    with pytest.raises(KeyboardInterrupt):
        tool.main()
    assert not tool.STAMP.exists()
