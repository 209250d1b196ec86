"""The notebooks: committed without outputs, and every cell runs, with the asserts in it."""

import os
import re
import resource
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CLEAR = "jupyter nbconvert --clear-output --inplace notebooks/*.ipynb"
MACHINE = re.compile(r"/(home|root|Users|tmp)/|[A-Z]:\\\\")
SECONDS = 60.0  # of one core, as busy as the others may be

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cpu_seconds() -> float:
    """Of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_they_are_numbered():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{n:02}" for n in range(1, 8)]


@each
def test_committed_without_outputs(path):
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    for cell in notebook.cells:
        run = cell.get("outputs") or cell.get("execution_count")
        assert not run, f"{path.name} holds the output of {cell.source!r}; {CLEAR}"
        assert not cell.metadata, f"{path.name}: {cell.source!r} has metadata {cell.metadata}"
        assert not MACHINE.search(cell.source), f"{path.name}: a machine's path in {cell.source!r}"


@pytest.mark.slow
@each
def test_every_cell_runs(path, tmp_path, monkeypatch):
    """In a kernel of its own, as a reader starts it, and leaves no file behind."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    before, files = cpu_seconds(), set(FOLDER.rglob("*"))
    where = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(nbformat.read(path, 4), timeout=300, resources=where).execute()
    assert set(FOLDER.rglob("*")) == files
    assert cpu_seconds() - before < SECONDS
