"""Small HTTP servers that answer as the engines people run do: paths, shapes and counters."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
EVENTS = "text/event-stream; charset=utf-8"


@dataclass
class Fake:
    """`gets`: what each path answers, JSON or text; `answer`: a request's stream, bytes by bytes.

    `posts`: further paths. A float among the bytes is a pause in seconds. `seen` are the requests
    to the two OpenAI paths, `heads` their headers.
    """

    gets: dict[str, Any] = field(default_factory=dict)
    answer: Callable[[str, Json], Iterable[bytes | float]] = lambda path, body: chat("Hello")
    posts: dict[str, Callable[[Json], Any]] = field(default_factory=dict)
    status: int = 200
    kind: str = EVENTS
    headers: dict[str, str] = field(default_factory=dict)
    seen: list[Json] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)


def event(choice: Json | None = None, **more: Any) -> bytes:
    body = {"choices": [] if choice is None else [choice], **more}
    return f"data: {json.dumps(body)}\n\n".encode()


def delta(text: str, **more: Any) -> bytes:
    return event({"index": 0, "delta": {"content": text}, "finish_reason": None}, **more)


DONE = b"data: [DONE]\n\n"
END = event({"index": 0, "delta": {}, "finish_reason": "stop"})


def chat(*texts: str, usage: Json | None = None, **more: Any) -> list[bytes | float]:
    """A role, a chunk for each text, the reason, the usage and [DONE]."""
    role = event({"index": 0, "delta": {"role": "assistant", "content": ""}})
    last = [event(None, usage=usage, **more)] if usage or more else []
    return [role, *map(delta, texts), END, *last, DONE]


def used(completion: int, prompt: int = 9, **more: Any) -> Json:
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}


@contextmanager
def running(fake: Fake) -> Iterator[str]:
    """The fake over a socket; its address."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            for name, value in fake.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def tell(self, found: Any) -> None:
            if found is None:
                self.reply(404, "application/json", b'{"detail": "Not Found"}')
            elif isinstance(found, str):
                self.reply(200, "text/plain", found.encode())
            else:
                self.reply(200, "application/json", json.dumps(found).encode())

        def do_GET(self) -> None:
            found = fake.gets.get(self.path)
            self.tell(found() if callable(found) else found)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path in fake.posts:
                self.tell(fake.posts[self.path](body))
                return
            fake.seen.append(body)
            fake.heads.append({name.lower(): value for name, value in self.headers.items()})
            pieces = fake.answer(self.path, body)
            if fake.status != 200 or fake.kind != EVENTS:
                whole = b"".join(piece for piece in pieces if isinstance(piece, bytes))
                self.reply(fake.status, fake.kind, whole)
                return
            self.send_response(200)
            self.send_header("content-type", fake.kind)
            self.end_headers()
            for piece in pieces:
                if isinstance(piece, float):
                    time.sleep(piece)
                else:
                    self.wfile.write(piece)
                    self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
