"""A streaming client of OpenAI-compatible servers: what one said, and when each piece came.

`stream(server, messages, settings)` asks for a chat's next answer, with a text in place of the
messages for its continuation as it stands. It takes what servers send beside the protocol: comments
and other fields, `data:` with and without a space, several lines for one event, CRLF, an end
without [DONE], chunks without a choice or with the usage alone, thoughts under any of their names,
and one whole body where a stream was asked for. Every failure is a ServerError, which says where.
Each request has a connection of its own, so that threads may share a Server.
"""

import http.client
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONNECT = 10.0  # seconds for a connection, and for a short answer
EXCERPT = 300  # characters of a body in an error
THOUGHTS = ("reasoning_content", "reasoning")  # servers send one of them, or both alike

Message = Mapping[str, Any]
Json = Mapping[str, Any]


class ServerError(ValueError):
    """What a server refused, broke off or never answered; `status` is 0 without one."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Server:
    """`url`: with or without the /v1 at its end; `patience`: seconds without a byte."""

    url: str
    key: str = field(default="", repr=False)  # a bearer token
    patience: float = 600.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            whole, parts = False, urlsplit("")
        if not whole or parts.query or parts.fragment:
            raise ServerError(f"server: expected http://HOST:PORT, got {self.url!r}")
        if parts.username or parts.password:
            raise ServerError("server: its address holds a password; give a key instead")

    def path(self, path: str) -> str:
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1") + path

    def connect(self, patience: float) -> http.client.HTTPConnection:
        """An open connection; raises ServerError where nothing listens."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        made = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = made(parts.hostname or "", parts.port, timeout=min(CONNECT, patience))
        try:
            connection.connect()
        except OSError as error:
            reason = error.strerror or error
            raise ServerError(
                f"no server answers at {self.url}: {reason}; start it, or correct the address"
            ) from error
        connection.sock.settimeout(patience)
        return connection

    def headers(self) -> dict[str, str]:
        told = {"content-type": "application/json", "accept-encoding": "identity"}
        return told | ({"authorization": f"Bearer {self.key}"} if self.key else {})


@dataclass(frozen=True)
class Piece:
    at: float  # seconds since the request was sent
    text: str
    thought: bool = False


@dataclass
class Reply:
    """`seconds`: to the end of the stream; `streamed` False: it came as one whole body."""

    pieces: list[Piece] = field(default_factory=list)
    usage: Json = field(default_factory=dict)  # the last one told
    timings: Json = field(default_factory=dict)  # llama.cpp's, and of servers that imitate it
    reason: str = ""  # stop, length, ...
    seconds: float = 0.0
    streamed: bool = True

    @property
    def text(self) -> str:
        """The answer without its thoughts."""
        return "".join(p.text for p in self.pieces if not p.thought)

    @property
    def thought(self) -> str:
        return "".join(p.text for p in self.pieces if p.thought)

    @property
    def said(self) -> str:
        """Both, in the order of writing."""
        return "".join(p.text for p in self.pieces)

    @property
    def first(self) -> float | None:
        """Seconds to the first text."""
        return self.pieces[0].at if self.pieces else None

    @property
    def last(self) -> float | None:
        return self.pieces[-1].at if self.pieces else None

    @property
    def tokens(self) -> int | None:
        """Of the answer, as the server counts them."""
        return _count(self.usage.get("completion_tokens"), self.timings.get("predicted_n"))

    @property
    def prompt_tokens(self) -> int | None:
        parts = [_count(self.timings.get(name)) for name in ("prompt_n", "cache_n")]
        both = None if parts[0] is None else parts[0] + (parts[1] or 0)
        return _count(self.usage.get("prompt_tokens"), both)

    @property
    def cached_tokens(self) -> int | None:
        """Those of the prompt that were not computed; None where the server does not say."""
        details = _mapping(self.usage.get("prompt_tokens_details"))
        return _count(details.get("cached_tokens"), self.timings.get("cache_n"))

    def take(self, event: Json, at: float) -> None:
        """Add what a streamed event, or a whole body, tells."""
        self.usage = _mapping(event.get("usage")) or self.usage
        self.timings = _mapping(event.get("timings")) or self.timings
        listed = event.get("choices")
        for choice in map(_mapping, listed[:1] if isinstance(listed, list) else []):
            said = _mapping(choice.get("delta")) or _mapping(choice.get("message"))
            thoughts = (_plain(said.get(name)) for name in THOUGHTS)
            if thought := next((text for text in thoughts if text), ""):
                self.pieces.append(Piece(at, thought, thought=True))
            if text := _plain(said.get("content")) or _plain(choice.get("text")):
                self.pieces.append(Piece(at, text))
            self.reason = choice.get("finish_reason") or self.reason


def stream(server: Server, prompt: str | Sequence[Message], settings: Json) -> Reply:
    """One answer; `settings` are further fields of the request: model, max_tokens, ...

    Raises ServerError where it is refused, breaks off or fails on its way.
    """
    plain = isinstance(prompt, str)
    path = "/v1/completions" if plain else "/v1/chat/completions"
    asked = {"prompt": prompt} if plain else {"messages": list(prompt)}
    body = {**asked, "stream": True, "stream_options": {"include_usage": True}, **settings}
    connection = server.connect(server.patience)
    reply = Reply()
    try:
        content = json.dumps(body).encode()
        start = time.perf_counter()
        connection.request("POST", server.path(path), content, server.headers())
        got = connection.getresponse()
        if got.status != 200:
            raise _refused(server, f"POST {path}", got, str(settings.get("model", "")))
        if "event-stream" in got.headers.get("content-type", "").lower():
            ended = False
            for event in events(got):
                if event is None:
                    ended = True
                    break
                if error := event.get("error"):
                    raise ServerError(f"POST {path}: failed on its way: {_said(error)}")
                reply.take(event, time.perf_counter() - start)
            if not ended and not reply.reason:
                raise ServerError(
                    f"POST {path}: ended after {len(reply.pieces)} pieces, unfinished"
                )
        else:
            reply.streamed = False
            reply.take(_object(got.read(), path), time.perf_counter() - start)
        reply.seconds = time.perf_counter() - start
        return reply
    except TimeoutError as error:
        raise ServerError(
            f"POST {path}: sent nothing for {server.patience:g} seconds"
            f" after {len(reply.pieces)} pieces"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(
            f"POST {path}: broke off after {len(reply.pieces)} pieces: {type(error).__name__}"
        ) from error
    finally:
        connection.close()


def events(lines: Iterable[bytes]) -> Iterator[Json | None]:
    """The objects of a stream of server-sent events, each as its line comes; None for [DONE]."""
    held = ""
    for number, raw in enumerate(lines):
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        name, _, value = (line.removeprefix("\ufeff") if number == 0 else line).partition(":")
        value = value.removeprefix(" ")
        if name == "error":  # llama.cpp's, of older versions
            raise ServerError(f"failed on its way: {value[:EXCERPT]}")
        if name == "data":
            if not held and value.strip() == "[DONE]":
                yield None
                return
            held = f"{held}\n{value}" if held else value
            try:
                event = json.loads(held)
            except ValueError:
                continue  # its next line may complete it
            held = ""
            if isinstance(event, dict):
                yield event
        elif not line and held:
            break
    if held:
        raise ServerError(f"an event is no JSON: {held[:EXCERPT]!r}")


def told(
    server: Server, path: str, body: Json | None = None, method: str = "", patience: float = CONNECT
) -> Any:
    """What a request's JSON says, its text where it is none; None where it is refused."""
    connection = server.connect(min(patience, server.patience))
    try:
        content = None if body is None else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        connection.request(method, server.path(path), content, server.headers())
        got = connection.getresponse()
        text = got.read().decode("utf-8", "replace")
        if got.status != 200:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def models(server: Server) -> list[str]:
    """The names that the server lists; none where it has no list."""
    listed = told(server, "/v1/models")
    cards = listed.get("data") if isinstance(listed, dict) else None
    return [str(card["id"]) for card in cards or [] if isinstance(card, dict) and "id" in card]


def _refused(server: Server, what: str, got: http.client.HTTPResponse, model: str) -> ServerError:
    body = got.read().decode("utf-8", "replace")
    try:
        body = _said(json.loads(body))
    except ValueError:
        pass
    text = f"{what}: status {got.status}: {' '.join(body.split())[:EXCERPT]}"
    if got.status in (401, 403):
        text += "; it wants a key" if not server.key else "; it does not take this key"
    elif 300 <= got.status < 400:
        text += f"; its address is {got.headers.get('location')}"
    elif got.status in (400, 404, 422) and (names := models(server)) and model not in names:
        text += f"; model {model!r} is none of this server's: {', '.join(names)}"
    return ServerError(text, got.status)


def _said(error: Any) -> str:
    """The message inside of an error's usual shapes."""
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    return error if isinstance(error, str) else json.dumps(error)[:EXCERPT]


def _object(body: bytes, path: str) -> Json:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found.get("choices"):
        raise ServerError(f"POST {path}: no answer of OpenAI's shape: {body[:EXCERPT]!r}")
    return found


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _plain(content: Any) -> str:
    """Text that is given as such or in parts."""
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in parts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _count(*values: Any) -> int | None:
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)
