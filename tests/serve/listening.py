"""Engines over the embedded model, and a listener that holds what a job was told."""

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.decode.embedded import CAPACITY, CASES, draft, model, tokenizer
from tr.decode.session import Sessions
from tr.serve.engine import Engine
from tr.serve.events import Text
from tr.serve.job import Failed, Finished, JobEvent, Request, TokenLogprob, Update

WAIT = 60  # seconds, for what must come
ROOM = 1 << 28


@dataclass(eq=False)
class Listener:
    """What a job was told. `hold`: an event at which the engine's thread waits for `release`."""

    hold: Callable[[JobEvent], bool] = lambda event: False
    events: list[JobEvent] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: JobEvent) -> None:
        assert not self.over.is_set(), event
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.over.set()
        elif self.hold(event) and not self.held.is_set():
            self.held.set()
            assert self.release.wait(WAIT)

    def wait(self) -> "Listener":
        assert self.over.wait(WAIT)
        return self

    @property
    def end(self) -> Finished:
        end = self.wait().events[-1]
        assert isinstance(end, Finished), end
        return end

    @property
    def updates(self) -> list[Update]:
        return [e for e in self.wait().events if isinstance(e, Update)]

    @property
    def ids(self) -> list[int]:
        return [t for update in self.updates for t in update.ids]

    @property
    def text(self) -> str:
        return "".join(e.text for u in self.updates for e in u.events if isinstance(e, Text))

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [p for update in self.updates for p in update.logprobs]


@functools.cache
def sessions(name: str, chunk: int = 64) -> Sessions:
    m = replace(model(), chunk=chunk)
    return Sessions(m, draft(name, CASES[0]), CAPACITY, ROOM)


@contextmanager
def running(name: str = "dflash2", waiting: int = 16) -> Iterator[Engine]:
    held = sessions(name)
    held.forget()
    engine = Engine(held, tokenizer(), tokenizer().eos, waiting)
    try:
        yield engine
    finally:
        engine.close(WAIT)


def ask(engine: Engine, request: Request, **named: Callable[[JobEvent], bool]) -> Listener:
    listener = Listener(**named)
    engine.submit(request, listener)
    return listener


def chat(text: str, thinking: bool = False) -> Sequence[int]:
    return tokenizer().chat([{"role": "user", "content": text}], enable_thinking=thinking)


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
