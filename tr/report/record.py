"""Records: what an experiment returns, and the one JSON file that its run leaves behind."""

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tr.report.machine import commit, versions

SCHEMA = 1
KEYS = {
    "schema": int,
    "experiment": str,
    "command": str,
    "config": dict,
    "commit": (str, type(None)),
    "dirty": bool,
    "utc": str,
    "device": dict,
    "versions": dict,
    "seed": int,
    "figures": dict,
    "verdict": (dict, type(None)),
    "simulated_acceptance": bool,
    "warnings": list,
}


@dataclass(frozen=True)
class Verdict:
    """Whether what a run compared was equal: speculation and raw decoding, mostly."""

    exact: bool
    compared_tokens: int
    first_divergence: Mapping[str, Any] | None = None  # prompt, position, both tokens, ...


@dataclass(frozen=True)
class Outcome:
    """What `run(config)` returns: nested numbers by name, the unit in the last key."""

    figures: Mapping[str, Any]
    verdict: Verdict | None = None  # None where nothing was compared
    simulated_acceptance: bool = False
    warnings: tuple[str, ...] = ()  # every fallback taken
    device: Mapping[str, Any] = field(default_factory=dict)  # ceilings measured in this run


def build(
    outcome: Outcome,
    experiment: str,
    command: str,
    config: Mapping[str, Any],
    seed: int,
    device: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a run; raises ValueError where a figure is not a finite number."""
    revision, dirty = commit()
    record = {
        "schema": SCHEMA,
        "experiment": experiment,
        "command": command,
        "config": dict(config),
        "commit": revision,
        "dirty": dirty,
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {**device, **outcome.device},
        "versions": versions(),
        "seed": seed,
        "figures": outcome.figures,
        "verdict": None if outcome.verdict is None else asdict(outcome.verdict),
        "simulated_acceptance": outcome.simulated_acceptance,
        "warnings": list(outcome.warnings),
    }
    validate(record, "this run's record")
    return record


def leaves(figures: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested figures with its dotted path; lists are walked too."""
    if isinstance(figures, Mapping):
        items: Any = figures.items()
    elif isinstance(figures, (list, tuple)):
        items = enumerate(figures)
    else:
        yield path, figures
        return
    for key, value in items:
        yield from leaves(value, f"{path}.{key}" if path else str(key))


def validate(record: Any, source: str) -> None:
    """Raise ValueError, naming `source`, unless `record` has the keys and types of a record."""
    if not isinstance(record, dict) or "schema" not in record:
        raise ValueError(
            f"{source} is not a record: it has no schema number, expected {SCHEMA}; leave it out"
        )
    if record["schema"] != SCHEMA:
        raise ValueError(
            f"{source} has record schema {record['schema']}, expected {SCHEMA}; read it with the"
            " commit that wrote it, or run its experiment again"
        )
    missing = [key for key in KEYS if key not in record]
    if missing:
        raise ValueError(
            f"{source} is not a whole record: it lacks {', '.join(missing)}; run its experiment"
            " again"
        )
    for key, kind in KEYS.items():
        if not isinstance(record[key], kind):
            names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise ValueError(
                f"{source}: expected {key} to be a {names}, got a {type(record[key]).__name__};"
                " run its experiment again"
            )
    for path, value in leaves(record["figures"]):
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise ValueError(f"{source}: figure {path} is a {type(value).__name__}, not a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{source}: figure {path} is {value}")


def write(path: Path, text: str | bytes) -> None:
    """Write a whole file or none: a temporary neighbour, then a rename."""
    data = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def save(record: Mapping[str, Any], path: Path) -> None:
    write(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def load(path: Path) -> dict[str, Any]:
    """A record from its file; raises ValueError or FileNotFoundError naming the file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not whole JSON ({error}); run its experiment again") from error
    validate(record, str(path))
    return record
