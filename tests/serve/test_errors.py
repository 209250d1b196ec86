"""What goes wrong, told in the envelope and with the status that each protocol's clients know."""

import anthropic
import openai
import pytest

from tests.serve import order
from tests.serve.texts import USER
from tr.serve.auth import Rules

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
LONG = [{"role": "user", "content": "word " * 6000}]


def chat(**fields):
    return {"model": "any", "messages": USER, **fields}


def messages(**fields):
    return {"model": "any", "max_tokens": 100, "messages": USER, **fields}


def openai_error(reply, status, kind, code=None, param=None):
    assert reply.status_code == status, reply.text
    assert reply.headers["x-request-id"].startswith("req_")
    (name, error), *rest = reply.json().items()
    assert name == "error" and not rest and error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (kind, code) and error["message"]
    assert param is None or error["param"] == param
    return error["message"]


def anthropic_error(reply, status, kind):
    assert reply.status_code == status, reply.text
    found = reply.json()
    assert found.keys() == {"type", "error", "request_id"} and found["type"] == "error"
    assert found["request_id"] == reply.headers["request-id"]
    assert found["error"].keys() == {"type", "message"} and found["error"]["type"] == kind
    return found["error"]["message"]


def test_paths_and_methods(world):
    http = world.http
    openai_error(http.get("/v1/nothing"), 404, "invalid_request_error", "unknown_url")
    openai_error(http.get("/v1/responses/resp_1"), 404, "invalid_request_error", "unknown_url")
    anthropic_error(http.post("/v1/messages/batches", json={}), 404, "not_found_error")
    refused = http.get(CHAT)
    openai_error(refused, 405, "invalid_request_error")
    assert refused.headers["allow"] == "POST"
    anthropic_error(http.get(MESSAGES), 405, "invalid_request_error")


def test_unknown_models(world, other):
    assert world.openai.models.retrieve("tiny").id == "tiny"
    version = {"anthropic-version": "2023-06-01"}
    unknown = world.http.get("/v1/models/none")
    openai_error(unknown, 404, "invalid_request_error", "model_not_found", "model")
    anthropic_error(world.http.get("/v1/models/none", headers=version), 404, "not_found_error")
    strict = other(strict_model=True).http
    unknown = strict.post(CHAT, json=chat())
    openai_error(unknown, 404, "invalid_request_error", "model_not_found", "model")
    anthropic_error(strict.post(MESSAGES, json=messages()), 404, "not_found_error")
    assert strict.post(CHAT, json=chat(model="claude-tiny")).status_code == 200


def test_a_prompt_beyond_the_window(world):
    """In the words by which clients know to shorten it, and to a coding client both numbers."""
    reply = world.http.post(CHAT, json=chat(messages=LONG))
    code = "context_length_exceeded"
    text = openai_error(reply, 400, "invalid_request_error", code, "messages")
    tokens = int(text.split("resulted in ")[1].split()[0])
    assert tokens > 4096 and f"({tokens} tokens > 4096 maximum)" in text
    assert "maximum context length is 4096 tokens" in text
    told = world.http.post(MESSAGES, json=messages(messages=LONG))
    text = anthropic_error(told, 400, "invalid_request_error")
    assert text == f"prompt is too long: {tokens} tokens > 4096 maximum"
    for fields in ({"stream": True}, {"max_tokens": 1}):
        assert world.http.post(CHAT, json=chat(messages=LONG, **fields)).status_code == 400
    assert not world.engine.seen


def test_little_room_is_too_little_unless_little_is_wanted(other):
    world = other(capacity=100, least_room=64)
    words = [{"role": "user", "content": "a b c d e f g h i j k l m n o p q r s t u v w x y z"}]
    room = (
        100
        - world.http.post("/v1/messages/count_tokens", json=messages(messages=words)).json()[
            "input_tokens"
        ]
    )
    assert 10 < room < 64
    assert world.http.post(CHAT, json=chat(messages=words)).status_code == 400
    assert world.http.post(CHAT, json=chat(messages=words, max_tokens=10)).status_code == 200
    assert world.http.post(CHAT, json=chat(messages=words, max_tokens=room)).status_code == 200
    assert world.http.post(CHAT, json=chat(max_tokens=1000)).status_code == 200
    assert world.engine.seen[-1].max_tokens == 100 - len(world.engine.seen[-1].ids)


def test_the_engine_refuses_a_field(world):
    def refuse(request):
        raise ValueError("response_format: 'not' is not supported by grammars")

    world.engine.refuse = refuse
    for fields in ({}, {"stream": True}):
        reply = world.http.post(CHAT, json=chat(**fields))
        assert "response_format: 'not'" in openai_error(reply, 400, "invalid_request_error")


def test_a_failure_while_streaming_is_the_last_event(world):
    def script(request):
        yield world.tokenizer.encode("Hello")
        raise RuntimeError("a secret of the prompt")

    world.engine.script = script
    reply = world.http.post(CHAT, json=chat())
    assert openai_error(reply, 500, "server_error") == "the script failed"
    anthropic_error(world.http.post(MESSAGES, json=messages()), 500, "api_error")
    *_, last, done = order.data(order.stream(world.http, CHAT, chat()))
    assert last["error"]["type"] == "server_error" and done == "[DONE]"
    with pytest.raises(openai.APIError, match="the script failed"):
        for _ in world.openai.chat.completions.create(**chat(), stream=True):
            pass
    name, last = order.stream(world.http, MESSAGES, messages())[-1]
    assert name == "error" and last["error"]["type"] == "api_error"
    with pytest.raises(anthropic.APIStatusError, match="the script failed"):
        with world.anthropic.messages.stream(**messages()) as stream:
            stream.get_final_message()
    name, last = order.stream(world.http, "/v1/responses", {"model": "m", "input": "Hi"})[-1]
    assert name == "response.failed" and last["response"]["error"]["message"]


def test_a_fault_of_our_own_tells_nothing(world, monkeypatch, caplog):
    def fail(conversation):
        raise ZeroDivisionError("/home/user/secret")

    monkeypatch.setattr(world.service.prompter, "render", fail)
    reply = world.http.post(CHAT, json=chat())
    assert openai_error(reply, 500, "server_error") == "internal error"
    anthropic_error(world.http.post(MESSAGES, json=messages()), 500, "api_error")
    assert "secret" not in reply.text and "secret" not in caplog.text


def test_no_engine(other):
    world = other()
    assert world.http.get("/health").status_code == 200
    world.engine.beat = 1e6
    assert world.http.get("/health").status_code == 503
    world.engine.beat, world.engine.alive = 0.0, False
    assert world.http.get("/v1/health").status_code == 503
    openai_error(world.http.post(CHAT, json=chat()), 503, "server_error")
    anthropic_error(world.http.post(MESSAGES, json=messages()), 503, "overloaded_error")


def test_a_full_queue(other):
    import threading

    world = other(waiting=1)
    go, running = threading.Event(), threading.Event()

    def script(request):
        running.set()
        go.wait(20)
        yield [world.tokenizer.eos[0]]

    world.engine.script = script
    threads = [
        threading.Thread(target=world.http.post, args=(CHAT,), kwargs={"json": chat()})
        for _ in range(2)
    ]
    threads[0].start()
    running.wait(10)
    threads[1].start()
    while not world.engine.state().queued:
        pass
    for stream in (False, True):
        reply = world.http.post(CHAT, json=chat(stream=stream))
        openai_error(reply, 429, "rate_limit_error", "rate_limit_exceeded")
        assert int(reply.headers["retry-after"]) > 0 and reply.headers["x-should-retry"] == "true"
        reply = world.http.post(MESSAGES, json=messages(stream=stream))
        anthropic_error(reply, 529, "overloaded_error")
        assert int(reply.headers["retry-after"]) > 0
    with pytest.raises(openai.RateLimitError):
        world.openai.chat.completions.create(**chat())
    go.set()
    for thread in threads:
        thread.join()


def test_a_request_has_an_end(other):
    import threading

    world, go = other(request=0.3), threading.Event()

    def script(request):
        yield None
        go.wait(10)
        yield [world.tokenizer.eos[0]]

    world.engine.script = script
    reply = world.http.post(CHAT, json=chat())
    openai_error(reply, 504, "server_error", "timeout")
    assert reply.headers["x-should-retry"] == "false"
    go.set()


def test_keys(other):
    world = other(Rules("secret"))
    http = world.http
    for headers in ({}, {"x-api-key": "no"}, {"authorization": "Bearer no"}):
        reply = http.post(CHAT, json=chat(), headers=headers)
        openai_error(reply, 401, "invalid_request_error", "invalid_api_key")
        reply = http.post(MESSAGES, json=messages(), headers=headers)
        anthropic_error(reply, 401, "authentication_error")
        assert http.get("/metrics", headers=headers).status_code == 401
        assert http.get("/v1/tr/state", headers=headers).status_code == 401
    for headers in ({"x-api-key": "secret"}, {"authorization": "bearer secret"}):
        assert http.post(CHAT, json=chat(), headers=headers).status_code == 200
        assert http.get("/metrics", headers=headers).status_code == 200
    for path in ("/", "/health"):
        assert http.get(path).status_code == 200
    client = openai.OpenAI(base_url=f"{world.url}/v1", api_key="no", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(**chat())
    with pytest.raises(anthropic.AuthenticationError):
        world.anthropic.messages.create(**messages())
