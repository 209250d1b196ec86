"""Clients that leave, wait or do not read: the engine hears of it, and others are served."""

import json
import socket
import threading
import time

import pytest

from tests.serve.listening import until
from tests.serve.texts import USER

BODIES = {
    "/v1/chat/completions": {"model": "m", "messages": USER},
    "/v1/completions": {"model": "m", "prompt": "Hi"},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "messages": USER, "max_tokens": 1000},
}


class Client:
    """A request over a bare socket, which can be cut at any time."""

    def __init__(self, world, path: str, stream: bool, room: int = 0) -> None:
        content = json.dumps({**BODIES[path], "stream": stream}).encode()
        self.socket = socket.socket()
        self.socket.settimeout(10)
        if room:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.connect(("127.0.0.1", world.server.port))
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        self.socket.sendall(head.encode() + content)

    def leave(self) -> None:
        self.socket.close()


class Gate:
    """A script that stops at its gate until it opens; whether it came there."""

    def __init__(self, world, before: int) -> None:
        self.world, self.before = world, before
        self.reached, self.open = threading.Event(), threading.Event()
        world.engine.script = self

    def __call__(self, request):
        yield None
        for step in range(100):
            if step == self.before:
                self.reached.set()
                self.open.wait(20)
                yield None
            yield self.world.tokenizer.encode("a b ")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("path", BODIES)
def test_a_client_leaves(world, path, phase, stream):
    """The job is cancelled while it stands in that phase, and the next one is served."""
    gate = Gate(world, before=3 if phase == "decode" else 0)
    first = None
    if phase == "queued":
        first = Client(world, "/v1/chat/completions", True)
        gate.reached.wait(10)
    client = Client(world, path, stream)
    if phase == "queued":
        until(lambda: world.engine.state().queued == 1)
    else:
        gate.reached.wait(10)
    ended = len(world.engine.ended)
    jobs = world.engine._jobs[:] or [world.engine._running]
    assert jobs[0].phase == phase
    client.leave()
    until(jobs[0].cancelled.is_set)
    if phase == "queued":
        until(lambda: len(world.engine.ended) == ended + 1)
        assert world.engine.ended[-1] == ("queued", "cancelled")
        assert first is not None
        first.leave()
        until(world.engine._running.cancelled.is_set)
    gate.open.set()
    until(lambda: world.engine.state().phase == "idle")
    assert world.engine.ended[-1][1] == "cancelled"
    world.says("Fine.")
    assert "Fine." in world.http.post(path, json=BODIES[path]).text


def test_cancellations_are_counted_by_phase(world):
    def counted():
        text = world.http.get("/metrics").text
        lines = [line.split() for line in text.splitlines() if line.startswith("tr_cancelled_t")]
        return {name.split('"')[1]: float(value) for name, value in lines}

    before = counted().get("prefill", 0)
    gate = Gate(world, before=0)
    client = Client(world, "/v1/messages", True)
    gate.reached.wait(10)
    client.leave()
    until(lambda: counted().get("prefill", 0) == before + 1)
    gate.open.set()


def test_a_client_that_leaves_before_its_body_is_there(world):
    for content in (b"", b'{"mod'):
        lone = socket.create_connection(("127.0.0.1", world.server.port))
        lone.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n")
        lone.sendall(content)
        lone.close()
    assert world.http.get("/health").status_code == 200 and not world.engine.seen


def test_a_body_that_never_ends(other):
    world = other(body=0.2)
    lone = socket.create_connection(("127.0.0.1", world.server.port))
    lone.settimeout(10)
    lone.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
    found = b""
    while b'"request_id"' not in found:
        found += lone.recv(1 << 16)
    assert found.startswith(b"HTTP/1.1 408") and b"invalid_request_error" in found
    lone.close()


def test_a_slow_reader_holds_up_nobody(other):
    """It is given up after a while; the engine never waits for it."""
    world = other(patience=0.5, capacity=10**6, max_tokens=10**6)
    ids = world.tokenizer.encode("word ")
    world.engine.script = lambda request: (ids for _ in range(30_000))
    slow = Client(world, "/v1/chat/completions", True, room=2048)
    until(lambda: bool(world.engine.ended))
    world.says("Fine.")
    begin = time.monotonic()
    assert "Fine." in world.http.post("/v1/messages", json=BODIES["/v1/messages"]).text
    assert time.monotonic() - begin < 5
    time.sleep(0.6)
    last = b""
    while piece := slow.socket.recv(1 << 20):
        last = piece
    assert b"[DONE]" not in last, "all of it was kept for a client that did not read"


def test_a_waiting_stream_looks_alive(world):
    """Status and first frames at once, then comments, while another request is served."""
    gate = Gate(world, before=0)
    first = Client(world, "/v1/chat/completions", True)
    gate.reached.wait(10)
    for path, sign in (("/v1/chat/completions", ": keep-alive"), ("/v1/messages", "event: ping")):
        body = {**BODIES[path], "stream": True}
        with world.http.stream("POST", path, json=body) as reply:
            assert reply.status_code == 200
            lines = reply.iter_lines()
            assert any(line == sign for line in lines)
    gate.open.set()
    first.leave()
    until(lambda: world.engine.state().phase == "idle")


def test_the_server_ends_while_requests_run(other):
    """They get a last word in their protocol, and all threads end."""
    world = other()
    gate = Gate(world, before=2)
    told = {}

    def ask(path):
        told[path] = world.http.post(path, json=BODIES[path])

    threads = [threading.Thread(target=ask, args=(path,)) for path in list(BODIES)[-2:]]
    threads[0].start()
    gate.reached.wait(10)
    threads[1].start()
    until(lambda: world.engine.state().queued == 1)
    closing = threading.Thread(target=world.engine.close)
    closing.start()
    until(lambda: world.engine.leaving)
    gate.open.set()
    for thread in (closing, *threads):
        thread.join(10)
        assert not thread.is_alive()
    assert [reply.status_code for reply in told.values()] == [503, 503]
