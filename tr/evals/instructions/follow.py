"""Whether an answer follows its prompt's instructions, strictly and loosely."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tr.evals.instructions import classic, custom, newer
from tr.evals.instructions.words import has
from tr.evals.listing import Json, Listing, field, own, read

CHECKS: dict[str, Callable[..., bool]] = {**classic.CHECKS, **newer.CHECKS, **custom.CHECKS}
NEEDS = {**classic.NEEDS, **newer.NEEDS}  # id -> the library that it takes
UNDEFINED = {"words:start_verb": "takes a trained tagger to tell verbs"}


@dataclass(frozen=True)
class Instruction:
    """`values`: the check's own arguments."""

    id: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    key: str
    prompt: str
    instructions: Sequence[Instruction]


@dataclass(frozen=True)
class Followed:
    """For each instruction whether the answer follows it."""

    strict: Sequence[bool]
    loose: Sequence[bool]


def problem(row: Json) -> Problem:
    """Instructions that are not known stay in it: `unknown` lists them."""
    key, prompt = row.get("key"), field(row, "prompt", str)
    if not isinstance(key, int | str) or isinstance(key, bool):
        raise ValueError(f"field 'key': expected a text or a whole number, got {key!r:.40}")
    ids, kwargs = field(row, "instruction_id_list", list), field(row, "kwargs", list)
    if not ids or len(ids) != len(kwargs):
        raise ValueError(f"expected kwargs for each instruction, got {len(kwargs)} for {len(ids)}")
    found = []
    for name, values in zip(ids, kwargs, strict=True):
        if not isinstance(name, str) or not isinstance(values, dict):
            raise ValueError(f"expected ids and objects, got {name!r:.40} with {values!r:.40}")
        given = {k: v for k, v in values.items() if v is not None}
        found.append(Instruction(name, checked(name, given) if name in CHECKS else given))
    return Problem(str(key), prompt, found)


def checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values that an instruction takes; raises ValueError for one that is missing or wrong."""
    wanted = list(inspect.signature(CHECKS[name]).parameters.values())[1:]
    names = [p.name for p in wanted]
    if left := [key for key in names if key not in given]:
        raise ValueError(f"{name}: kwargs lack {', '.join(left)}")
    if more := [key for key in given if key not in names]:
        raise ValueError(f"{name}: kwargs have {', '.join(more)}, expected {names or 'none'}")
    return {p.name: _value(name, p.name, given[p.name], p.annotation) for p in wanted}


def _value(name: str, key: str, value: Any, kind: Any) -> Any:
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{name}: {key}: expected a whole number, got {value!r:.40}")
    if (name, key) == ("count:words_japanese", "N") and value < 1:
        raise ValueError(f"{name}: {key}: expected at least 1, got {value}")
    if kind is str and not isinstance(value, str):
        raise ValueError(f"{name}: {key}: expected a text, got {value!r:.40}")
    if "relation" in key and value not in classic.RELATIONS:
        raise ValueError(f"{name}: {key}: expected one of {classic.RELATIONS}, got {value!r:.40}")
    if key == "letter" and len(value) != 1:
        raise ValueError(f"{name}: letter: expected one character, got {value!r:.40}")
    if kind == list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"{name}: {key}: expected a list of texts, got {value!r:.40}")
    return value


def load(path: str | Path) -> Listing[Problem]:
    return read(path, problem, lambda p: p.key)


def embedded(rows: Iterable[Json]) -> Listing[Problem]:
    rows = list(rows)
    made = own(rows, dict)
    return Listing([problem(row) for row in rows], made.sha256)


def unknown(problems: Iterable[Problem]) -> dict[str, str]:
    """The instructions that cannot be checked here: how often they occur, and why."""
    counts = Counter(i.id for p in problems for i in p.instructions)
    found = {}
    for name, count in sorted(counts.items()):
        reason = UNDEFINED.get(name, "is not known")
        if name in CHECKS:
            library = NEEDS.get(name)
            if library is None or has(library):
                continue
            reason = f"needs {library}: pip install 'tr[evals]'"
        found[name] = f"{reason} ({count} times)"
    return found


def follow(asked: Problem, answer: str) -> Followed:
    """Loosely: one of the answer's variants passes, without stars, its first or last line."""
    lines = answer.split("\n")
    cut = [answer, *("\n".join(x).strip() for x in (lines[1:], lines[:-1], lines[1:-1]))]
    variants = [*cut, *(text.replace("*", "") for text in cut)]
    strict = [_passes(i, answer) for i in asked.instructions]
    loose = [
        already or any(_passes(i, text) for text in variants[1:])
        for i, already in zip(asked.instructions, strict, strict=True)
    ]
    return Followed(strict, loose)


def _passes(instruction: Instruction, text: str) -> bool:
    """An empty answer follows nothing."""
    return bool(text.strip()) and CHECKS[instruction.id](text, **instruction.values)
