"""What a check finds, and the guard that turns every error of one into a finding."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK, WARN, FAIL = STATES = ("ok", "warn", "fail")  # the worst one last


@dataclass(frozen=True)
class Finding:
    """What is `found` of an `item`; `todo`: the remedy, or what it costs to leave it so."""

    item: str
    state: str
    found: str
    todo: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def guarded(item: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of `check`; an error ends it, not the doctor, and is found as what it is."""
    try:
        yield from check()
    except (ValueError, OSError) as error:  # our own words, which name a remedy
        yield refused(item, error)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        said = f"{type(error).__name__}: {str(error).strip() or 'without a word'} ({where})"
        yield Finding(item, FAIL, said, "a fault of this program or of a library: report it")


def refused(item: str, error: Exception, state: str = FAIL) -> Finding:
    """An error whose first line ends with the remedy, behind its last semicolon."""
    first, *more = str(error).splitlines() or [type(error).__name__]
    found, _, todo = first.rstrip(":").rpartition("; ")
    if not found:
        found, todo = todo, ""
    return Finding(item, state, "\n".join([found, *(line.strip() for line in more)]), todo)


def worst(states: Iterable[str]) -> str:
    return max(states, key=STATES.index, default=OK)
