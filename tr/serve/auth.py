"""Who may ask: the key, the Host header, and which web pages.

A plain ASGI layer, so that a disconnect reaches the application. A page of another site can send a
request without asking first, and a name that resolves to this machine makes any site its own; both
are refused here, before a body is read.
"""

import hashlib
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tr.serve.errors import FORBIDDEN, KEY, ApiError, response

OPEN = ("/", "/health", "/v1/health")  # paths without a key: they tell nothing of the requests
LOCAL = ("localhost", "127.0.0.1", "::1")
ALLOWED = {
    "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
    "access-control-allow-headers": "*, authorization",
    "access-control-max-age": "600",
}


@dataclass(frozen=True)
class Rules:
    """`key` empty: none is asked for. `hosts` empty: any Host header. `origins`: web pages beside
    those of this machine; "*" is any.
    """

    key: str = ""
    hosts: Sequence[str] = LOCAL
    origins: Sequence[str] = ()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def rules(host: str, key: str, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> Rules:
    """The rules for an address to listen on; raises ValueError for a public one without a key."""
    if not is_loopback(host):
        if not key:
            raise ValueError(
                f"host={host} is reachable from other machines: set api_key=KEY or the environment"
                " variable TR_API_KEY, or host=127.0.0.1"
            )
        return Rules(key, hosts, origins)
    return Rules(key, (*LOCAL, *hosts), origins)


class Guard:
    """Refuses by Host (403), Origin (403) and key (401); answers preflights."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self.app, self.rules = app, rules
        self._digest = _digest(rules.key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        error = self._refused(scope, headers, origin)
        app = self.app if error is None else response(scope, error)
        if error is None and scope["method"] == "OPTIONS":
            app = Response(status_code=204, headers=ALLOWED)
        if origin is None:
            return await app(scope, receive, send)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and self._welcome(origin, headers):
                added = MutableHeaders(raw=list(message.get("headers", [])))
                added["access-control-allow-origin"] = origin
                added["access-control-expose-headers"] = "request-id, x-request-id, retry-after"
                added.add_vary_header("origin")
                message = {**message, "headers": added.raw}
            await send(message)

        await app(scope, receive, sending)

    def _refused(self, scope: Scope, headers: Headers, origin: str | None) -> ApiError | None:
        host = headers.get("host", "")
        if self.rules.hosts and _name(f"//{host}") not in self.rules.hosts:
            return ApiError(FORBIDDEN, "host: this Host header is not served; add it to hosts=[..]")
        if origin is not None and not self._welcome(origin, headers):
            return ApiError(FORBIDDEN, "origin: this web page may not ask; add it to origins=[..]")
        if scope["method"] == "OPTIONS" or scope["path"] in OPEN or not self.rules.key:
            return None
        given = headers.get("x-api-key") or _bearer(headers.get("authorization", ""))
        if secrets.compare_digest(_digest(given), self._digest):
            return None
        said = "wrong API key" if given else "no API key"
        return ApiError(KEY, f"{said}: send it as authorization: Bearer KEY or as x-api-key: KEY")

    def _welcome(self, origin: str, headers: Headers) -> bool:
        own = urlsplit(origin).netloc if "//" in origin else ""
        listed = origin in self.rules.origins or "*" in self.rules.origins
        return listed or _name(origin) in LOCAL or bool(own) and own == headers.get("host")


def _name(address: str) -> str:
    """The host of an address, without its port; empty where there is none to be read."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _bearer(header: str) -> str:
    scheme, _, key = header.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    """Keys are compared by digests of one length, in constant time."""
    return hashlib.sha256(key.encode()).digest()
