"""Request bodies: whole, within a limit and a time, inflated, and JSON whatever their type says.

A plain ASGI layer. The body is read once here and handed on in one piece; what comes after it, a
disconnect, is the application's to receive.
"""

import asyncio
import zlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tr.serve.errors import INVALID, SLOW_BODY, TOO_LARGE, ApiError, response

WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Gone(Exception):
    """The client left before its body was complete."""


class Bodies:
    """`limit` bytes at most, inflated too; `seconds` for all of it to arrive."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self.app, self.limit, self.seconds = app, limit, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in WRITES:
            return await self.app(scope, receive, send)
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self.seconds)
        except TimeoutError:
            late = ApiError(SLOW_BODY, f"body: not complete after {self.seconds:g} seconds")
            return await response(scope, late)(scope, receive, send)
        except ApiError as error:
            return await response(scope, error)(scope, receive, send)
        except Gone:
            return
        headers = MutableHeaders(raw=list(scope["headers"]))
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(body))
        if "content-encoding" in headers:
            del headers["content-encoding"]
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receiving() -> Message:
            return pending.pop() if pending else await receive()

        scope["headers"] = headers.raw
        await self.app(scope, receiving, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """A body that is somewhat too long is read to its end, so that the answer is seen."""
        headers, pieces, size = Headers(scope=scope), [], 0
        declared = headers.get("content-length", "")
        hopeless = declared.isdecimal() and int(declared) > 2 * self.limit
        more = not hopeless
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            piece = message.get("body", b"")
            size += len(piece)
            if size <= self.limit:
                pieces.append(piece)
            more = message.get("more_body", False) and size <= 2 * self.limit
        if hopeless or size > self.limit:
            raise ApiError(TOO_LARGE, f"body: larger than {self.limit} bytes")
        return self._inflate(b"".join(pieces), headers.get("content-encoding", "identity"))

    def _inflate(self, body: bytes, encoding: str) -> bytes:
        encoding = encoding.strip().lower()
        if encoding in ("", "identity"):
            return body
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise ApiError(
                INVALID, f"content-encoding: expected gzip or deflate, got {encoding[:40]!r}"
            )
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either header
        try:
            found = inflater.decompress(body, self.limit + 1)
        except zlib.error:
            raise ApiError(INVALID, f"body: no valid {encoding} data") from None
        if len(found) > self.limit:
            raise ApiError(TOO_LARGE, f"body: larger than {self.limit} bytes once inflated")
        if not inflater.eof:
            raise ApiError(INVALID, f"body: its {encoding} data end too early")
        return found
