"""An experiment run in a test's own folder."""

import json
from pathlib import Path
from typing import Any

from tr import experiment
from tr.overrides import load


def run(folder: Path, *args: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the record of one run, which writes to folder / "out"."""
    config = load(list(args))
    config.output = str(folder / "out")
    code = experiment.run(config, "test")
    return code, json.loads((folder / "out" / "record.json").read_text())


def record_of(folder: Path, *args: str) -> dict[str, Any]:
    """The record of a run that ends well."""
    code, record = run(folder, *args)
    assert code == 0
    return record
