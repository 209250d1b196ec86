"""Slow readers and large bodies beside a stream whose pieces must go on coming."""

import json
import threading
import time

import pytest

from tests.serve.test_cancel import BODIES, Client
from tests.serve.texts import USER

LARGE = 10_000_000  # bytes
GAP = 3.0  # seconds between two pieces of a stream, at most; those of a lone one take 0.02
CHAT = "/v1/chat/completions"
WORDS = "word " * (LARGE // 5)
BODY = {
    "a prompt": ({"messages": [{"role": "user", "content": WORDS}]}, 400),
    "a tool": (
        {
            "messages": USER,
            "tools": [{"type": "function", "function": {"name": "f", "description": WORDS}}],
        },
        400,
    ),
    "many messages": ({"messages": [{"role": "user", "content": "a b c " * 80}] * 20_000}, 400),
    "no JSON": (None, 400),
    "a field": ({"messages": USER, "unknown": WORDS}, 200),
}


def pieces(world, steps):
    """When each piece of a streamed answer came, and the answer."""
    times, text = [time.monotonic()], ""
    with world.http.stream(
        "POST", CHAT, json={"model": "m", "messages": USER, "stream": True}
    ) as r:
        for line in r.iter_lines():
            if line.startswith("data: {"):
                times.append(time.monotonic())
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    assert text == "a b " * steps
    return max(b - a for a, b in zip(times, times[1:], strict=False))


def paced(world, steps):
    ids = world.tokenizer.encode("a b ")

    def script(request):
        for _ in range(steps):
            time.sleep(0.01)
            yield ids

    world.engine.script = script


@pytest.mark.parametrize("name", BODY)
def test_a_large_body_holds_up_nobody(other, name):
    world = other()
    paced(world, 100)
    content, status = BODY[name]
    data = b"{" * LARGE if content is None else json.dumps({"model": "m", **content}).encode()
    assert len(data) < 1.2 * LARGE
    told, gaps, waits = [], [], []
    over = threading.Event()

    def send():
        told.append(world.http.post(CHAT, content=data).status_code)

    def count():
        while not over.wait(0.02):
            begin = time.monotonic()
            asked = {"model": "m", "messages": USER}
            world.http.post("/v1/messages/count_tokens", json=asked).raise_for_status()
            waits.append(time.monotonic() - begin)

    work = (send, count, lambda: gaps.append(pieces(world, 100)))
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    threads[0].join(30)
    over.set()
    for thread in threads[1:]:
        thread.join(30)
    assert told == [status] and gaps[0] < GAP and max(waits) < GAP


def test_slow_readers_hold_up_nobody(other):
    """Four that read a byte in a while; their answers are larger than what the system keeps."""
    world = other(capacity=10**6, max_tokens=10**6)
    ids = world.tokenizer.encode("word ")
    world.engine.script = lambda request: (ids for _ in range(5_000))
    over = threading.Event()
    slow = [Client(world, path, True, room=2048) for path in BODIES]

    def sip():
        while not over.wait(0.2):
            for client in slow:
                client.socket.recv(1)

    reader = threading.Thread(target=sip)
    reader.start()
    try:
        end = time.monotonic() + 20
        while len(world.engine.ended) < len(slow):
            assert time.monotonic() < end, "the engine waits for a reader"
            time.sleep(0.01)
        paced(world, 100)
        assert pieces(world, 100) < GAP
    finally:
        over.set()
        reader.join(10)
        for client in slow:
            client.leave()
