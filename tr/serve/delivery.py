"""A request's answers on their way from the engine's thread to the loop that sends them."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from tr.serve.engine import Closed, Engine, QueueFull
from tr.serve.errors import AGAIN, FAULT, FULL, LATE, NEVER, UNREADY, ApiError
from tr.serve.job import Failed, Finished, Job, JobEvent, Progress, Request, Started, Update
from tr.serve.metrics import Metrics, Watch
from tr.serve.options import Options
from tr.serve.prompt import Rendered

AGAIN_AFTER = 0.05  # seconds between tries of a further answer's place in the queue


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the engine gets: one request for each answer, all to the same prompt."""

    requests: Sequence[Request]
    rendered: Rendered | None = None  # None: no conversation, so nothing to remember of it


class Delivery:
    """The answers to one request, made one after another; `leave` gives up what is not done.

    The first one is queued at once: raises ApiError where the queue is full. The loop is woken for
    what there is to send, and once for all that it has not looked at; `tick`: also every so many
    seconds, 0: never. `remember` is told of the ids of each answer that is complete.
    """

    def __init__(
        self,
        engine: Engine,
        options: Options,
        metrics: Metrics,
        prepared: Sequence[Prepared],
        remember: Callable[[Rendered, Sequence[int]], object],
        tick: float = 0,
    ) -> None:
        self._engine, self._options, self._metrics = engine, options, metrics
        self._remember, self._tick = remember, tick
        self._loop = asyncio.get_running_loop()
        self._told: deque[JobEvent] = deque()
        self._woken = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._late = self._over = False
        self._todo = [(one.rendered, r) for one in prepared for r in one.requests]
        self._start(self._todo[0][1])
        self._timers["end"] = self._loop.call_later(options.request, self._end)
        if tick:
            self._ticks()

    async def events(self) -> AsyncGenerator[tuple[int, list[JobEvent]], None]:
        """Each answer's number and what came of it, a `Finished` last; raises ApiError."""
        try:
            for index, (rendered, request) in enumerate(self._todo):
                if index:
                    await self._again(request)
                ids: list[int] = []
                while not self._over:
                    events = await self._next()
                    for event in events:
                        self._watch.see(event)
                        if isinstance(event, Update):
                            ids += event.ids
                    last = events[-1] if events else None
                    if isinstance(last, Failed):
                        self._over = True
                        yield index, events[:-1]
                        raise ApiError(FAULT, last.message)
                    if isinstance(last, Finished):
                        self._over = True
                        if last.reason == "cancelled":
                            raise ApiError(UNREADY, "the server is shutting down", headers=NEVER)
                        if rendered is not None:
                            self._remember(rendered, ids)
                    yield index, events
        finally:
            self.leave()

    def leave(self) -> None:
        """The client is gone, or had enough."""
        for timer in self._timers.values():
            timer.cancel()
        if not self._over:
            self._over = True
            self._watch.left(self._job.phase)
            self._job.cancel()

    async def _next(self) -> list[JobEvent]:
        """What came since the last call; nothing at a tick."""
        await self._woken.wait()
        self._woken.clear()  # before it is looked at what came: what comes now wakes again
        if self._late:
            seconds = self._options.request
            raise ApiError(LATE, f"not done after {seconds:g} seconds", headers=NEVER)
        return [self._told.popleft() for _ in range(len(self._told))]

    def _start(self, request: Request) -> None:
        try:
            self._job: Job = self._engine.submit(request, self._deliver, checked=True)
        except QueueFull as error:
            raise ApiError(FULL, str(error), headers=AGAIN) from error
        except Closed as error:
            raise ApiError(UNREADY, "the engine does not run", headers=AGAIN) from error
        self._watch, self._over = Watch(self._metrics), False

    async def _again(self, request: Request) -> None:
        """A further answer waits for a place in the queue, since the first one is out already."""
        while True:
            try:
                return self._start(request)
            except ApiError as error:
                if error.kind is not FULL or self._late:
                    raise
            await asyncio.sleep(AGAIN_AFTER)

    def _end(self) -> None:
        self._late = True
        self._woken.set()

    def _ticks(self) -> None:
        self._woken.set()
        self._timers["tick"] = self._loop.call_later(self._tick, self._ticks)

    def _deliver(self, event: JobEvent) -> None:
        """Called by the engine's thread."""
        self._told.append(event)
        quiet = isinstance(event, Started | Progress)  # nothing is sent of them
        if not quiet and not self._woken.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)
