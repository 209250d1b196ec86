"""Problem sets as files of one JSON object a line, plain or gzipped."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Problems in their order; `sha256` is the file's, or that of what made them."""

    problems: Sequence[T]
    sha256: str


def read(path: str | Path, make: Callable[[Json], T], name: Callable[[T], str]) -> Listing[T]:
    """A problem for every line that is not blank, its `name` unique.

    Raises FileNotFoundError, or ValueError with the file and the line: not JSON, no object, what
    `make` finds wrong, a name twice; and where there is no problem at all.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"params.path: {path} is no file; give a JSONL file of problems")
    data = path.read_bytes()
    found: list[T] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(_text(path, data).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            problem = make(_object(line))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if (before := lines.setdefault(name(problem), number)) != number:
            raise ValueError(f"{where}: {name(problem)!r} stands in line {before} already")
        found.append(problem)
    if not found:
        raise ValueError(f"{path}: expected a problem a line, got an empty file")
    return Listing(found, hashlib.sha256(data).hexdigest())


def own(problems: Iterable[T], told: Callable[[T], Any]) -> Listing[T]:
    """Problems of our own; the hash is that of what is `told` of each."""
    problems = list(problems)
    text = json.dumps([told(p) for p in problems], sort_keys=True)
    return Listing(problems, hashlib.sha256(text.encode()).hexdigest())


def field(row: Json, name: str, kind: type[T], default: T | None = None) -> T:
    """A field of a line; raises ValueError where it is missing or of another type."""
    if name not in row and default is not None:
        return default
    if name not in row:
        raise ValueError(f"expected a field {name!r}, got {', '.join(map(repr, row)) or 'none'}")
    value = row[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        told = f"{type(value).__name__} {value!r:.40}"
        raise ValueError(f"field {name!r}: expected a {kind.__name__}, got {told}")
    return value


def _text(path: Path, data: bytes) -> str:
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: not UTF-8; expected a JSONL file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip data ({error}); fetch the file again") from error


def _object(line: str) -> Json:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read: nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    return row
