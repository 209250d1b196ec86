"""Server-sent events: frames, keep-alives where nothing was written, and an end for both."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tr.serve.errors import FAULT, ApiError
from tr.serve.job import JobEvent
from tr.serve.logs import raised, tell

T = TypeVar("T")


class Writer(Protocol):
    """A protocol's words for one answer; frames may be empty bytes."""

    def open(self) -> bytes: ...

    def push(self, index: int, event: JobEvent) -> bytes:
        """An event of the answer `index`; all of one answer come before those of the next."""
        ...

    def wait(self, seconds: float) -> bytes:
        """Something to send where nothing was for a while; `seconds` since the stream's start."""
        ...

    def close(self) -> bytes: ...

    def fail(self, error: ApiError) -> bytes: ...


async def frames(
    writer: Writer, told: AsyncGenerator[tuple[int, list[JobEvent]], None], every: float
) -> AsyncGenerator[bytes, None]:
    """What goes over the wire, a failure as the protocol's own last event.

    `told`: what came of an answer since, nothing now and then: a keep-alive where nothing was
    written for `every` seconds. A client that leaves ends this generator, and `told` with it.
    """
    start = wrote = time.monotonic()
    try:
        yield writer.open()
        async for index, events in told:
            now = time.monotonic()
            frame = b"".join([writer.push(index, event) for event in events])
            if not frame and now - wrote >= every:
                frame = writer.wait(now - start)
            if frame:
                wrote = now
                yield frame
        yield writer.close()
    except ApiError as error:
        yield writer.fail(error)
    except Exception as error:
        tell("stream failed", 40, **raised(error))
        yield writer.fail(ApiError(FAULT, "internal error"))
    finally:
        await told.aclose()


async def disconnected(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(work: Awaitable[T], receive: Receive) -> T | None:
    """What `work` gives; None where it is cancelled, as it is when the client leaves before."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() and not task.cancelled() else None
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class EventStream(Response):
    """Sends `frames` until they end, the client leaves or it reads nothing for `patience` seconds.

    The first frame goes out at once, so that a request that waits its turn looks alive. `leave` is
    called in the end, even where not one frame was taken.
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes, None], patience: float, leave: Callable[[], None]
    ) -> None:
        self.frames, self.patience, self.leave = frames, patience, leave
        self.status_code, self.background = 200, None
        self._since: float | None = None  # when the frame that is being sent was handed over
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        self._look(sending, scope.get("request_id"))
        try:
            await while_connected(sending, receive)
        finally:
            self._timer.cancel()
            self.leave()
            await self.frames.aclose()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for frame in self.frames:
            self._since = time.monotonic()
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            self._since = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _look(self, sending: asyncio.Future[None], request: str | None) -> None:
        """Now and then: stop where a frame has waited for too long to be taken."""
        if self._since is not None and time.monotonic() - self._since >= self.patience:
            tell("slow reader", request=request)
            sending.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.patience / 4, self._look, sending, request)
