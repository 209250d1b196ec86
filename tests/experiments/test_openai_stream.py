"""The streaming client: what servers send beside the protocol, and how each failure is named."""

import json
import socket
import threading

import pytest

from experiments.openai_stream import Reply, Server, ServerError, events, models, stream, told
from tests.experiments.fake_servers import DONE, END, Fake, chat, delta, event, running, used

ASKED = [{"role": "user", "content": "Hi"}]


def read(raw: bytes) -> Reply:
    reply = Reply()
    for found in events(raw.splitlines(keepends=True)):
        if found is not None:
            reply.take(found, 1.0)
    return reply


@pytest.mark.parametrize(
    "raw",
    [
        delta("sev") + delta("en") + END + DONE,
        delta("sev") + delta("en") + END,  # no [DONE]
        (delta("sev") + delta("en") + END + DONE).replace(b"\n", b"\r\n"),
        (delta("sev") + delta("en") + END + DONE).replace(b"data: ", b"data:"),
        (delta("sev") + delta("en") + END + DONE).replace(b"\n\n", b"\n"),
        b": ping\n\n" + delta("sev") + b":\n\nretry: 10\n\nid: 4\nevent: chunk\n" + delta("en"),
        b"\xef\xbb\xbf" + delta("sev") + delta("en"),
        delta("sev") + (delta("en") + DONE).rstrip(),  # no line's end at the end
        delta("sev").replace(b', "finish', b',\ndata: "finish') + delta("en"),
        event() + event(None, usage=None) + delta("seven", usage=None) + b"data: null\n\n",
        event({"text": "sev"}) + event({"text": "en", "finish_reason": "length"}),
        event({"delta": {"content": [{"type": "text", "text": "seven"}]}}),
        event({"delta": None}) + event({"delta": {"content": None}}) + event({"text": "seven"}),
        delta("seven") + DONE + delta("more"),
    ],
)
def test_texts_arrive_whole(raw):
    assert read(raw).text == "seven"


@pytest.mark.parametrize(
    "names", [["reasoning_content"], ["reasoning"], ["reasoning", "reasoning_content"]]
)
def test_a_thought_is_no_text_and_counts_once(names):
    reply = read(event({"delta": dict.fromkeys(names, "hm")}) + delta("yes"))
    assert (reply.thought, reply.text, reply.said) == ("hm", "yes", "hmyes")


def test_the_last_usage_counts():
    early, late = used(1), used(7, 5, prompt_tokens_details={"cached_tokens": 4})
    reply = read(delta("a", usage=early) + event(None, usage=late) + event(None, usage=None))
    assert (reply.tokens, reply.prompt_tokens, reply.cached_tokens) == (7, 5, 4)


def test_timings_stand_in_for_a_usage():
    reply = read(event(None, timings={"cache_n": 3, "prompt_n": 4, "predicted_n": 9}))
    assert (reply.tokens, reply.prompt_tokens, reply.cached_tokens) == (9, 7, 3)


@pytest.mark.parametrize("odd", [b"data: [1]\n\n", event("no"), b'data: {"choices": 3}\n\n'])
def test_odd_events_are_no_text(odd):
    assert read(odd + delta("a")).text == "a"


def test_what_is_no_json_is_named():
    with pytest.raises(ServerError, match="an event is no JSON: '<html>'"):
        read(delta("a") + b"data: <html>\n\n")


def test_the_request():
    fake = Fake(answer=lambda path, body: chat("a", "b", usage=used(2)))
    with running(fake) as url:
        for end in ("", "/", "/v1", "/v1/"):
            reply = stream(Server(url + end, key="k"), ASKED, {"model": "m", "seed": 1})
    assert reply.text == "ab" and reply.reason == "stop" and reply.streamed
    times = [piece.at for piece in reply.pieces]
    assert 0 < times[0] <= times[1] <= reply.seconds
    assert (reply.first, reply.last) == tuple(times)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert fake.seen[0] == {"messages": ASKED, "model": "m", "seed": 1, **options}
    assert fake.heads[0]["authorization"] == "Bearer k" and len(fake.seen) == 4


def test_a_text_is_continued():
    fake = Fake(answer=lambda path, body: [event({"text": path, "finish_reason": "stop"})])
    with running(fake) as url:
        assert stream(Server(url), "Once", {}).text == "/v1/completions"
    assert fake.seen[0]["prompt"] == "Once" and "authorization" not in fake.heads[0]


def test_a_whole_body_in_place_of_a_stream():
    body = {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "usage": used(2)}
    fake = Fake(answer=lambda path, asked: [json.dumps(body).encode()], kind="application/json")
    with running(fake) as url:
        reply = stream(Server(url), ASKED, {})
    assert reply.text == "ab" and reply.tokens == 2 and not reply.streamed


@pytest.mark.parametrize(
    "status, body, message",
    [
        (500, b'{"error": {"message": "out of memory"}}', "status 500: out of memory$"),
        (400, b'{"error": "bad\\n thing"}', "status 400: bad thing$"),
        (422, b'{"detail": [{"loc": ["top_k"]}]}', r'status 422: \[{"loc": \["top_k"\]}\]$'),
        (503, b"<h1>Loading</h1>", "status 503: <h1>Loading</h1>$"),
        (502, b"x" * 5000, "status 502: x{300}$"),
        (401, b'{"message": "no"}', "status 401: no; it wants a key$"),
    ],
)
def test_a_refusal_is_named(status, body, message):
    fake = Fake(answer=lambda *_: [body], status=status, kind="application/json")
    with running(fake) as url, pytest.raises(ServerError, match=message) as caught:
        stream(Server(url), ASKED, {"model": "m"})
    assert caught.value.status == status


def test_a_wrong_model_is_told_the_right_ones():
    listed = {"data": [{"id": "qwen"}, {"id": "llama"}]}
    refusal = b'{"error": {"message": "model not found"}}'
    fake = Fake({"/v1/models": listed}, lambda *_: [refusal], status=404, kind="application/json")
    with running(fake) as url:
        with pytest.raises(ServerError, match="model 'm' is none of this server's: qwen, llama$"):
            stream(Server(url), ASKED, {"model": "m"})
        with pytest.raises(ServerError, match="model not found$"):
            stream(Server(url), ASKED, {"model": "qwen"})


def test_a_key_that_is_not_taken_and_a_moved_address():
    fake = Fake(answer=lambda *_: [b"{}"], status=403, kind="application/json")
    with running(fake) as url:
        with pytest.raises(ServerError, match="it does not take this key"):
            stream(Server(url, key="k"), ASKED, {})
        fake.status, fake.headers = 308, {"location": "https://elsewhere"}
        with pytest.raises(ServerError, match="its address is https://elsewhere"):
            stream(Server(url), ASKED, {})


@pytest.mark.parametrize(
    "pieces, message",
    [
        ([delta("a"), b'data: {"error": {"message": "lost"}}\n\n'], "failed on its way: lost"),
        ([delta("a"), b'error: {"message": "lost"}\n\n'], 'failed on its way: {"message": "lost"}'),
        ([delta("a"), delta("b")], "ended after 2 pieces, unfinished"),
        ([delta("a"), 0.5, END], "sent nothing for 0.2 seconds after 1 pieces"),
        ([], "ended after 0 pieces"),
    ],
)
def test_a_stream_that_fails_is_named(pieces, message):
    with running(Fake(answer=lambda *_: pieces)) as url:
        with pytest.raises(ServerError, match=message):
            stream(Server(url, patience=0.2), ASKED, {})


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"object": "list"}'])
def test_another_body_is_no_answer(body):
    fake = Fake(answer=lambda *_: [body], kind="text/html")
    with running(fake) as url, pytest.raises(ServerError, match="no answer of OpenAI's shape"):
        stream(Server(url), ASKED, {})


@pytest.mark.parametrize(
    "head, message",
    [
        (b"content-length: 999\r\n\r\n", "ended after 1 pieces, unfinished"),
        (b"transfer-encoding: chunked\r\n\r\n999\r\n", "broke off after 1 pieces: IncompleteRead"),
    ],
)
def test_a_connection_that_breaks_is_named(head, message):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", patience=5)

        def answer() -> None:
            with listener.accept()[0] as connection:
                begin = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                connection.sendall(begin + head + delta("a"))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # closed with something unread, it would be reset
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ServerError, match=message):
            stream(server, ASKED, {})
        thread.join()


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for ask in (lambda: stream(Server(url), ASKED, {}), lambda: models(Server(url))):
        with pytest.raises(ServerError, match=f"no server answers at {url}: Connection refused"):
            ask()


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://a", "http://", "http://a:b", "http://a?b"]
)
def test_an_address_that_is_none(url):
    with pytest.raises(ServerError, match="expected http://HOST:PORT"):
        Server(url)


def test_no_password_in_an_address_and_no_key_in_a_message():
    with pytest.raises(ServerError, match="give a key instead"):
        Server("http://me:secret@host")
    assert "secret" not in repr(Server("http://host", key="secret"))


def test_short_answers():
    fake = Fake({"/json": {"a": 1}, "/text": "a b"})
    with running(fake) as url:
        server = Server(url + "/v1")
        assert told(server, "/json") == {"a": 1} and told(server, "/text") == "a b"
        assert told(server, "/none") is None and models(server) == []
