"""HTTP clients in a process of their own, so that they take no time from the server's interpreter.

`python -m experiments.serve_client PORT`: each line of standard input is a request to this
machine, a JSON object {id, path, body, leave, after}; each line of standard output says what came
of one. Up to CLIENTS of them run side by side, each on a connection that is kept. `leave`: seconds
after which the client goes away, null if it waits for the end; `after`: seconds before it asks.
"""

import http.client
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

CLIENTS = 64
PATIENCE = 600.0  # seconds without a byte
Json = Mapping[str, Any]


def written(event: Json) -> str:
    """The text that a streamed event of any protocol adds."""
    if event.get("type") == "response.output_text.delta":
        return event["delta"]
    if event.get("type") == "content_block_delta":
        return event["delta"].get("text") or ""
    pieces = (c.get("text") or (c.get("delta") or {}).get("content") for c in event_choices(event))
    return "".join(piece or "" for piece in pieces)


def event_choices(event: Json) -> list[Json]:
    return event.get("choices") or []


def whole(body: Json) -> str:
    """The text of a body of any protocol that was not streamed."""
    if choices := event_choices(body):
        return choices[0].get("text") or (choices[0].get("message") or {}).get("content") or ""
    blocks = body.get("content") or []
    for item in body.get("output") or []:
        blocks = [*blocks, *(item.get("content") or [])]
    return "".join(block.get("text") or "" for block in blocks)


def usage(event: Json) -> dict[str, int]:
    """Tokens of the answer, and those of the prompt that were computed, where the event tells."""
    used = event.get("usage") or (event.get("response") or {}).get("usage")
    if not used:
        return {}
    if "prompt_tokens" in used:
        known = used["prompt_tokens_details"]["cached_tokens"]
        return {"tokens": used["completion_tokens"], "computed": used["prompt_tokens"] - known}
    known = (used.get("input_tokens_details") or {}).get("cached_tokens", 0)
    return {"tokens": used["output_tokens"], "computed": used["input_tokens"] - known}


class Client:
    """One request at a time over a connection that is kept."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def ask(self, path: str, body: Json, leave: float | None = None) -> dict[str, Any]:
        """Status, text, tokens, seconds to the first text and to the end; `left`, `error`.

        A client that left tells what it had read by then.
        """
        told: dict[str, Any] = {"status": 0, "text": "", "first": None, "left": False}
        content = json.dumps(body).encode()
        gone = threading.Event()
        start = time.perf_counter()
        timer = None
        try:
            if self.connection.sock is None:
                self.connection.connect()
            if leave is not None:
                timer = threading.Timer(leave, self._leave, (self.connection.sock, gone))
                timer.start()
            self.connection.request("POST", path, content, {"content-type": "application/json"})
            reply = self.connection.getresponse()
            told["status"] = reply.status
            self._read(reply, told, start)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not gone.is_set():
                told["error"] = f"{type(error).__name__}: {error}"
        finally:
            if timer is not None:
                timer.cancel()
        told["seconds"] = time.perf_counter() - start
        told["left"] = gone.is_set()
        if gone.is_set() or "error" in told:
            self.connection.close()
        return told

    @staticmethod
    def _leave(sock: socket.socket, gone: threading.Event) -> None:
        gone.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _read(reply: http.client.HTTPResponse, told: dict[str, Any], start: float) -> None:
        if "event-stream" not in reply.headers.get("content-type", ""):
            body = json.loads(reply.read())
            if reply.status != 200:
                told["refused"] = body
                return
            told |= {"text": whole(body), **usage(body), "ended": True}
            return
        for line in reply:
            if not line.startswith(b"data: {"):
                told["ended"] = told.get("ended", False) or line.startswith(b"data: [DONE]")
                continue
            event = json.loads(line[6:])
            if "error" in event and event["error"]:
                told["failed"] = event["error"]
            if text := written(event):
                if told["first"] is None:
                    told["first"] = time.perf_counter() - start
                told["text"] += text
            told |= usage(event)
            if event.get("type") in ("message_stop", "response.completed", "response.incomplete"):
                told["ended"] = True


class Clients:
    """The other end of the process: `send` requests, `take` what came of them in any order."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._told: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(
        self, id: int, path: str, body: Json, leave: float | None = None, after: float = 0.0
    ) -> None:
        assert self._process.stdin is not None
        asked = {"id": id, "path": path, "body": body, "leave": leave, "after": after}
        print(json.dumps(asked), file=self._process.stdin, flush=True)

    def take(self, timeout: float) -> dict[str, Any]:
        """Raises TimeoutError where nothing ends in `timeout` seconds."""
        try:
            told = self._told.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no request ended within {timeout:g} seconds") from None
        if told is None:
            raise RuntimeError("the clients' process ended")
        return told

    def ask(self, path: str, body: Json, timeout: float = PATIENCE) -> dict[str, Any]:
        """One request alone."""
        self.send(0, path, body)
        return self.take(timeout)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.put(json.loads(line))
        self._told.put(None)


@contextmanager
def clients(port: int) -> Iterator[Clients]:
    command = [sys.executable, "-m", "experiments.serve_client", str(port)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")
    try:
        yield Clients(process)
    finally:
        process.terminate()
        process.wait(10)


def main(port: int) -> None:
    lock, own = threading.Lock(), threading.local()

    def one(line: str) -> None:
        asked = json.loads(line)
        if not hasattr(own, "client"):
            own.client = Client(port)
        time.sleep(asked["after"])
        told = own.client.ask(asked["path"], asked["body"], asked["leave"])
        with lock:
            print(json.dumps({"id": asked["id"], **told}), flush=True)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for line in sys.stdin:
            pool.submit(one, line)


if __name__ == "__main__":
    main(int(sys.argv[1]))
