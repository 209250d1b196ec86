"""One JSON object per line, and no text of a prompt or an answer in it.

`Access` is the outermost layer: it gives each request its id, tells how it ended, and keeps what
the application raised from reaching the server's own log, which would print values.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tr.serve import errors

log = logging.getLogger("tr.serve")


class JsonLines(logging.Formatter):
    """time, level, event, and the fields given by `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1]:
            line |= raised(record.exc_info[1])
        return json.dumps(line | getattr(record, "fields", {}), ensure_ascii=False, default=str)


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Log from `level` on to standard error; of the server's own lines, warnings and worse."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("tr.serve", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)


def tell(event: str, level: int = logging.INFO, **fields: Any) -> None:
    log.log(level, event, extra={"fields": fields})


def raised(error: BaseException) -> dict[str, Any]:
    """Where an exception came from, without its message, which may quote a prompt."""
    last = traceback.extract_tb(error.__traceback__)[-4:]
    places = [f"{frame.name}:{frame.lineno}" for frame in last]
    return {"error": type(error).__name__, "at": places}


class Access:
    """Request ids in `scope["request_id"]` and in both protocols' headers; one line per request.

    `count` is told of each: its scope, with the route it took, and its status.
    """

    def __init__(self, app: ASGIApp, count: Callable[[Scope, int], None]) -> None:
        self.app, self.count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        name = scope["request_id"] = f"req_{uuid4().hex}"
        status, start = 0, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(key, name.encode()) for key in (b"request-id", b"x-request-id")]
                message = {**message, "headers": [*message.get("headers", []), *ids]}
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:
            tell("request failed", logging.ERROR, request=name, **raised(error))
            if not status:
                fault = errors.ApiError(errors.FAULT, "internal error")
                await errors.response(scope, fault)(scope, receive, sending)
        finally:
            self.count(scope, status)
            tell(
                "request",
                logging.INFO if scope["method"] == "POST" else logging.DEBUG,
                request=name,
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=round(time.perf_counter() - start, 4),
            )
