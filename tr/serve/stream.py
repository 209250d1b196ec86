"""Server-sent events: frames, keep-alives where nothing was written, and an end for both."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
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
    writer: Writer, events: AsyncGenerator[tuple[int, JobEvent], None], every: float
) -> AsyncGenerator[bytes, None]:
    """What goes over the wire, a failure as the protocol's own last event.

    A client that leaves ends this generator, and `events` with it.
    """
    start = time.monotonic()
    try:
        yield writer.open()
        async with aclosing(paced(events, every)) as timed:
            async for event in timed:
                waited = time.monotonic() - start
                if frame := writer.wait(waited) if event is None else writer.push(*event):
                    yield frame
        yield writer.close()
    except ApiError as error:
        yield writer.fail(error)
    except Exception as error:
        tell("stream failed", 40, **raised(error))
        yield writer.fail(ApiError(FAULT, "internal error"))
    finally:
        await events.aclose()


async def paced(events: AsyncIterator[T], every: float) -> AsyncGenerator[T | None, None]:
    """`events`, and None whenever the reader got nothing for `every` seconds."""
    following: asyncio.Future[T] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({following}, timeout=every)
            if not done:
                yield None
                continue
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            finally:
                following = None
            yield event
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(work: Awaitable[T], receive: Receive) -> T | None:
    """What `work` gives; None, and `work` cancelled, where the client leaves before that."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
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
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._send(send), receive)
        except TimeoutError:
            tell("slow reader", request=scope.get("request_id"))
        finally:
            self.leave()
            await self.frames.aclose()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for frame in self.frames:
            message = {"type": "http.response.body", "body": frame, "more_body": True}
            await asyncio.wait_for(send(message), self.patience)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
