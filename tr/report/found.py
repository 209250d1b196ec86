"""Which records a command means: files, folders of them, or either as git keeps it (REV:PATH)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tr.report import history
from tr.report.plot import SUFFIX
from tr.report.record import load

Records = dict[str, dict[str, Any]]
ASIDE = ("sweep.json", "failure.json")  # what a sweep keeps beside its records


def one_set(path: str) -> Records:
    """Records by their path inside `path`, without `.json`; a single file goes by its name."""
    place = Path(path)
    if not place.exists() and ":" in path:
        return history.at(path)
    if not place.exists():
        raise FileNotFoundError(
            f"{path}: expected a record, a folder of records or either as REV:PATH, got nothing;"
            " check the path"
        )
    if not place.is_dir():
        return {place.stem: load(place)}
    inside = sorted(place.glob("**/*.json"))
    files = [f for f in inside if f.name not in ASIDE and not f.name.endswith(SUFFIX)]
    if not files:
        raise ValueError(f"{path} holds no records: expected *.json, got none; run an experiment")
    return {str(file.relative_to(place).with_suffix("")): load(file) for file in files}


def all_of(paths: Sequence[str], newest: bool = False) -> Records:
    """Every record by its whole path; of runs of one config on one device, `newest` keeps the last
    by its time, and otherwise they are an error.
    """
    found: Records = {}
    for path in paths:
        for name, record in one_set(path).items():
            inside = Path(path).is_dir() or (":" in path and not path.endswith(".json"))
            title = f"{path}/{name}" if inside else path.removesuffix(".json")
            found[title.lstrip("/")] = record
    twins: dict[str, list[str]] = {}
    for title, record in found.items():
        twins.setdefault(identity(record), []).append(title)
    for titles in twins.values():
        if len(titles) > 1 and not newest:
            raise ValueError(
                f"{', '.join(titles)}: expected one run of a config on a device, got {len(titles)};"
                " --newest keeps the last one, --compare shows two beside each other"
            )
        titles.sort(key=lambda title: found[title]["utc"])
    return {title: record for title, record in found.items() if title in _last(twins)}


def _last(twins: Mapping[str, Sequence[str]]) -> set[str]:
    return {titles[-1] for titles in twins.values()}


def identity(record: Mapping[str, Any]) -> str:
    """Experiment, config and device: what makes two runs the same one again."""
    parts = [record["experiment"], record["config"], record["device"].get("name")]
    return json.dumps(parts, sort_keys=True)


def flat(config: Any, path: str = "") -> dict[str, Any]:
    """A config's values by dotted path; lists count as values."""
    if not isinstance(config, Mapping):
        return {path: config}
    return {
        key: value
        for name, child in config.items()
        for key, value in flat(child, f"{path}.{name}" if path else str(name)).items()
    }


def differing(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Config values, the device's aside, that are not the same in all records."""
    configs = [flat(record["config"]) for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if not key.startswith("device.")
        and any(config.get(key) != configs[0].get(key) for config in configs)
    ]
