"""Older versions of records, which git keeps; where there is no history, that is said."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tr.report.record import load, validate

Record = dict[str, Any]


def git(folder: Path, *args: str) -> str:
    """What git prints in `folder`; ValueError where it is missing or refuses."""
    try:
        done = subprocess.run(
            ("git", *args), cwd=folder, capture_output=True, text=True, check=True, timeout=60
        )
    except FileNotFoundError as error:
        raise ValueError("older records need git, which is not installed here") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or ["no reason given"]
        raise ValueError(f"git {args[0]} in {folder}: {said[-1]}") from error
    return done.stdout


def parsed(text: str, source: str) -> Record:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{source} is not whole JSON ({error}); choose another revision"
        ) from error
    validate(record, source)
    return record


def at(place: str) -> dict[str, Record]:
    """Records of `REV:PATH`, a file's or a folder's, by their path inside it."""
    revision, _, path = place.partition(":")
    here = Path.cwd()
    listed = git(here, "ls-tree", "-r", "--name-only", revision, "--", path).splitlines()
    names = [name for name in listed if name.endswith(".json")]
    if not names:
        raise ValueError(f"{place} holds no records: git knows no *.json there at that revision")
    found = {}
    for name in names:
        file = Path(name)
        title = file.stem if name == path else str(file.relative_to(path).with_suffix(""))
        found[title] = parsed(git(here, "show", f"{revision}:./{name}"), f"{revision}:{name}")
    return found


def is_whole(folder: Path) -> bool:
    """Whether git has all of the history around `folder`."""
    try:
        return git(folder, "rev-parse", "--is-shallow-repository").strip() == "false"
    except ValueError:
        return False


def versions(path: Path) -> list[Record]:
    """A record and its older versions, the oldest first, each run once; ValueError without any."""
    folder = path.resolve().parent
    if not is_whole(folder):
        raise ValueError(
            f"{path}: progress needs the history of the file, and git has none of it here, or only"
            " a part; clone the repository whole"
        )
    commits = git(folder, "log", "--format=%H", "--", path.name).split()
    found = [load(path)]
    for commit in commits:
        try:
            text = git(folder, "show", f"{commit}:./{path.name}")
        except ValueError:  # deleted there
            continue
        found.append(parsed(text, f"{commit[:12]}:{path.name}"))
    by_time = {record["utc"]: record for record in reversed(found)}
    return [by_time[utc] for utc in sorted(by_time)]


def figure(record: Mapping[str, Any], path: str) -> Any:
    """A figure by its dotted path, or None; names may hold dots themselves."""
    node: Any = record["figures"]
    while path:
        if isinstance(node, list) and path.partition(".")[0].isdigit():
            head, _, path = path.partition(".")
            node = node[int(head)] if int(head) < len(node) else None
            continue
        if not isinstance(node, Mapping):
            return None
        heads = [key for key in node if path == key or path.startswith(f"{key}.")]
        if not heads:
            return None
        head = max(heads, key=len)
        node, path = node[head], path[len(head) + 1 :]
    return node
