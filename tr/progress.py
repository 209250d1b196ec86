"""What long work tells while it runs: stages that count, on stderr as bars or JSON lines, or not.

with stage("loading", total=nbytes, unit="bytes") as loading:
    loading.advance(1 << 20)

Whoever works names its stages; the command says once, by `reporting`, who hears of them. Nobody
does in a thread that a command starts, and nobody where no command runs, unless the environment
variable TR_PROGRESS names a mode.
"""

import functools
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")
MODES = ("auto", "bars", "quiet", "json")
VARIABLE = "TR_PROGRESS"
EVERY = 0.1  # seconds from one report of a stage to the next, at least
LINES = 5 * EVERY  # the same for JSON lines
RECENT = 20  # lines that a rate is taken over


@dataclass(eq=False)
class Stage:
    """Work of `total` units (None: not known), `done` so far."""

    name: str
    total: float | None
    unit: str
    listener: "Listener | None" = None
    done: float = 0
    due: float = 0.0  # by the clock; no report before

    def advance(self, units: float = 1, name: str = "") -> None:
        """`units` more are done; with `name` the stage is called so from here on."""
        self.done += units
        self.name = name or self.name
        if self.listener is None or (now := time.monotonic()) < self.due:
            return
        self.due = now + EVERY
        self.listener.advance(self)


class Listener(Protocol):
    """Who hears of stages. One may begin inside another."""

    def begin(self, stage: Stage) -> None: ...

    def advance(self, stage: Stage) -> None: ...

    def end(self, stage: Stage, whole: bool) -> None:
        """`whole`: no exception ended it, and the loop over it was not left."""
        ...


_mode: ContextVar[str] = ContextVar("tr.progress", default="")  # empty: no command has said


@contextmanager
def stage(
    name: str, total: float | None = None, unit: str = "steps", told: bool = True
) -> Iterator[Stage]:
    """A stage of work, told from its first moment to its last, if it is to be `told` at all."""
    listener = _hearing() if told else None
    made, whole = Stage(name, total, unit, listener), False
    if listener is None:
        yield made
        return
    listener.begin(made)
    try:
        yield made
        whole = True
    finally:
        listener.end(made, whole)


def track(items: Iterable[T], name: str, unit: str = "steps") -> Iterator[T]:
    """Yield `items` as a stage of their own, one unit each."""
    total = len(items) if isinstance(items, Sized) else None
    with stage(name, total, unit) as made:
        for item in items:
            yield item
            made.advance()


@contextmanager
def reporting(mode: str) -> Iterator[None]:
    """Stages of what runs inside are told as `mode` says.

    `auto`: as TR_PROGRESS says, else bars on a terminal and nothing elsewhere. Raises ValueError
    for a value of that variable that is no mode.
    """
    token = _mode.set(_resolved(mode))
    try:
        yield
    finally:
        _mode.reset(token)


def silenced() -> bool:
    """Whether a command runs that shows no bars."""
    return _mode.get() in ("quiet", "json")


def _hearing() -> Listener | None:
    fallback = "auto" if VARIABLE in os.environ else "quiet"
    return _listener(_mode.get() or _resolved(fallback))


def _resolved(mode: str) -> str:
    if mode == "auto":
        mode = os.environ.get(VARIABLE, mode)
    if mode not in MODES:
        raise ValueError(f"{VARIABLE}={mode}: expected {', '.join(MODES[:-1])} or {MODES[-1]}")
    if mode != "auto":
        return mode
    stream = sys.stderr
    terminal = stream is not None and not stream.closed and stream.isatty()
    return "bars" if terminal else "quiet"


@functools.cache
def _listener(mode: str) -> Listener | None:
    if mode == "quiet":
        return None
    if mode == "json":
        return Lines()
    from tr.bars import Bars

    return Bars()


class Steady:
    """Standard error as it is at each write; a closed one takes what it gets and is silent."""

    def write(self, text: str) -> int:
        try:
            if sys.stderr is not None:
                sys.stderr.write(text)
        except (OSError, ValueError):
            pass
        return len(text)

    def flush(self) -> None:
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
        except (OSError, ValueError):
            pass

    def isatty(self) -> bool:
        try:
            return sys.stderr is not None and sys.stderr.isatty()
        except ValueError:
            return False


class Lines:
    """One JSON object a line: `stage`, `state` (begun, running, done, stopped), `done`, `total`,
    `unit`, `rate` (units a second, lately), `seconds_remaining`; null where not known.
    """

    def __init__(self) -> None:
        self.seen: dict[Stage, deque[tuple[float, float]]] = {}  # seconds, units of recent lines
        self.stream = Steady()

    def begin(self, stage: Stage) -> None:
        self.seen[stage] = deque(maxlen=RECENT)
        self._say(stage, "begun")

    def advance(self, stage: Stage) -> None:
        if time.monotonic() - self.seen[stage][-1][0] >= LINES:
            self._say(stage, "running")

    def end(self, stage: Stage, whole: bool) -> None:
        self._say(stage, "done" if whole else "stopped")
        del self.seen[stage]

    def _say(self, stage: Stage, state: str) -> None:
        now, seen = time.monotonic(), self.seen[stage]
        rate = left = None
        if seen and now > seen[0][0]:
            rate = (stage.done - seen[0][1]) / (now - seen[0][0])
        if rate and stage.total is not None:
            left = round(max(0.0, stage.total - stage.done) / rate, 1)
        seen.append((now, stage.done))
        told = {
            "stage": stage.name,
            "state": state,
            "done": stage.done,
            "total": stage.total,
            "unit": stage.unit,
            "rate": None if rate is None else float(f"{rate:.4g}"),
            "seconds_remaining": left,
        }
        self.stream.write(json.dumps(told) + "\n")
        self.stream.flush()
