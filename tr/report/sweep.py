"""A sweep's folder read back: records and failures, the settings that vary among them, one table.

FOLDER/sweep.json           whose folder it is
FOLDER/<job>/record.json    a job that is done
FOLDER/<job>/failure.json   one that failed; its traceback is in failure.log
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tr.report import pictures
from tr.report.found import ASIDE, flat
from tr.report.origin import origin_line
from tr.report.plot import Plot
from tr.report.record import SCHEMA, leaves, load, write
from tr.report.tables import Table, label, markdown, number

MANIFEST, FAILURE = ASIDE
RECORD, LOG = "record.json", "failure.log"
CHOICES = {  # of a group, the setting that the others come with
    "model": "name",
    "weights": "source",
    "quant": "format",
    "kv": "format",
    "prefill": "activations",
    "kernel": "variant",
    "draft": "strategy",
    "jit": "backend",
    "prompts": "name",
    "device": "name",
}
HEADLINES = (  # figures that a table shows, five at most, the mean over all places that have one
    "tokens_per_step",
    "speculative_tokens_per_s",
    "raw_tokens_per_s",
    "tokens_per_s",
    "step_ms",
    "ratio",
    "wall_fraction",
    "kl_mean",
    "top1",
    "perplexity",
    "bits_per_weight",
)
MOST = 5
Made = Mapping[str, Mapping[str, Any]]  # records and failures by their folders' names


@dataclass(frozen=True)
class Sweep:
    name: str  # as in configs/sweep; empty: the axes came from the command line alone
    experiments: list[str]
    records: dict[str, dict[str, Any]]  # by the names of their folders
    failures: dict[str, dict[str, Any]]

    @property
    def title(self) -> str:
        """What its folder is called by default."""
        return "-".join([self.name] * bool(self.name) + ["+".join(self.experiments)])


def identity(experiment: str, config: Mapping[str, Any]) -> str:
    """12 digits that jobs of one experiment and the same settings share."""
    plain = json.loads(json.dumps([experiment, config]))  # keys as a file has them
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def collect(folder: Path) -> Sweep:
    """What a sweep's folder holds.

    Raises ValueError naming the file that is cut short or of another schema, and jobs that are
    there twice.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise ValueError(f"{folder} is not a sweep's folder: expected {MANIFEST} in it")
    manifest = _object(path, ("sweep", "experiments"))
    records = {p.parent.name: _record(p) for p in sorted(folder.glob(f"*/{RECORD}"))}
    failures = {
        p.parent.name: _object(p, ("experiment", "config", "reason"))
        for p in sorted(folder.glob(f"*/{FAILURE}"))
        if p.parent.name not in records
    }
    seen: dict[str, str] = {}
    for name, record in records.items():
        other = seen.setdefault(identity(record["experiment"], record["config"]), name)
        if other != name:
            raise ValueError(
                f"{folder} holds one job twice, in {other} and {name}; move one of them away"
            )
    return Sweep(manifest["sweep"], manifest["experiments"], records, failures)


def _record(path: Path) -> dict[str, Any]:
    try:
        return load(path)
    except ValueError as error:
        raise ValueError(f"{error}; move {path.parent} away, or choose another folder") from error


def _object(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not whole JSON ({error}); move it away") from error
    if not isinstance(found, dict) or any(key not in found for key in keys):
        raise ValueError(f"{path} lacks one of {', '.join(keys)}; move it away")
    if found.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {found.get('schema')}, expected {SCHEMA}")
    return found


def axes(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted settings that tell configs apart; `draft.strategy`, say, stands for those that come
    with it, and another setting of drafts is an axis where it varies with the strategy kept.
    """
    rows = [{key: json.dumps(value) for key, value in flat(config).items()} for config in configs]
    found = []
    for key in dict.fromkeys(key for row in rows for key in row):
        group, dot, leaf = key.partition(".")
        choice = CHOICES.get(group) if dot else None
        kept = f"{group}.{choice}" if choice and leaf != choice else ""
        seen: dict[str | None, set[str | None]] = {}
        for row in rows:
            seen.setdefault(row.get(kept), set()).add(row.get(key))
        if any(len(values) > 1 for values in seen.values()):
            found.append(key)
    return found


def axis_label(axis: str) -> str:
    group, _, leaf = axis.partition(".")
    return group if CHOICES.get(group) == leaf else axis.removeprefix("params.")


def headlines(record: Mapping[str, Any]) -> dict[str, float]:
    """The figures of HEADLINES that a record has, each the mean over its places."""
    found: dict[str, list[float]] = {}
    for path, value in leaves(record.get("figures", {})):
        name = path.rpartition(".")[2]
        if name in HEADLINES and isinstance(value, (int, float)):
            found.setdefault(name, []).append(value)
    return {name: fmean(found[name]) for name in HEADLINES if name in found}


def outcome(made: Mapping[str, Any]) -> str:
    """What became of a job, in a word or a line."""
    if "reason" in made:
        first = made["reason"].strip().partition("\n")[0]
        return f"failed: {first if len(first) <= 90 else first[:87] + '...'}"
    verdict = made["verdict"]
    word = "" if verdict is None else "exact" if verdict["exact"] else "NOT exact"
    simulated = "simulated acceptance" if made["simulated_acceptance"] else ""
    return ", ".join(filter(None, (word, simulated))) or "done"


def _sorted(made: Made, along: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Every job's values on the axes, numbers in their order."""
    values = {name: flat(one["config"]) for name, one in made.items()}

    def place(name: str) -> list[tuple[bool, Any]]:
        row = [values[name].get(axis) for axis in along]
        row = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in row]
        return [(not isinstance(v, (int, float)), v if isinstance(v, (int, float)) else str(v))
                for v in row]  # fmt: skip

    return {
        name: tuple(_shown(values[name].get(axis)) for axis in along)
        for name in sorted(made, key=place)
    }


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def table(made: Made, title: str, names: bool = False) -> Table:
    """A row per job: the axes, its headlines, what became of it; with `names` its folder."""
    along = axes([one["config"] for one in made.values()])
    found = {name: headlines(one) for name, one in made.items()}
    shown = [h for h in HEADLINES if any(h in figures for figures in found.values())][:MOST]
    rows = tuple(
        (*cells, *(number(found[name].get(h)) for h in shown), outcome(made[name]))
        + ((name,) if names else ())
        for name, cells in _sorted(made, along).items()
    )
    head = (*map(axis_label, along), *map(label, shown), "outcome", *(("folder",) if names else ()))
    return Table(title, head, rows)


def plots(made: Made) -> dict[str, Plot]:
    """Lying bars of each headline: a group per job but for the last axis, whose values are bars."""
    records = {name: one for name, one in made.items() if "figures" in one}
    along = axes([one["config"] for one in records.values()])
    if not along:
        return {}
    places = _sorted(records, along)
    found = {name: headlines(one) for name, one in records.items()}
    drawn: dict[str, Plot] = {}
    for headline in HEADLINES:
        series: dict[str, list[list[Any]]] = {}
        for name, (*rest, last) in places.items():
            if headline in found[name]:
                bar = f"{axis_label(along[-1])} {last}"
                series.setdefault(bar, []).append([", ".join(rest) or "all", found[name][headline]])
        if series and len(drawn) < MOST:
            title = f"{label(headline).capitalize()} by {', '.join(map(axis_label, along))}"
            drawn[headline] = Plot("lying_bars", title, label(headline), "", series)
    return drawn


def write_report(sweep: Sweep, folder: Path) -> Path:
    """`report.md` over all of a sweep's folder, and its plots; the path of the report."""
    made = {**sweep.records, **sweep.failures}
    drawn = plots(made)
    for name, plot in drawn.items():
        for file, data in pictures.quick(name, plot).items():
            write(folder / file, data)
    title = f"Sweep {sweep.name or 'of the command line'}, {', '.join(sweep.experiments)}"
    origins = _each(sweep.records, lambda record: origin_line(record))
    parts = [
        f"# {title}",
        f"{len(sweep.records)} jobs recorded, {len(sweep.failures)} failed."
        " Figures are means over the places where a record has them.",
        *origins,
        markdown(table(made, title, names=True)),
        *(pictures.quick_image(name, plot) for name, plot in drawn.items()),
    ]
    for name, failure in sweep.failures.items():
        parts.append(f"**{name}** failed ([{LOG}]({name}/{LOG})): `{failure['command']}`")
    write(folder / "report.md", "\n\n".join(parts) + "\n")
    return folder / "report.md"


def _each(records: Made, line: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """The lines that records have, each once."""
    return list(dict.fromkeys(f"- {line(record)}" for record in records.values()))
