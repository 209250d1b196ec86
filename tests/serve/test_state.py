"""Health, figures, the status page, and texts to tokens and back."""

import json
import logging
import re
from dataclasses import replace

import pytest

from tests.serve.listening import until
from tests.serve.texts import CALL, CHAT_TOOL, USER
from tr.serve.logs import JsonLines

CHAT = "/v1/chat/completions"


def test_models_for_both_clients(world):
    told = world.openai.models.list().data
    assert [m.id for m in told] == ["tiny", "claude-tiny"]
    page = world.anthropic.models.list(limit=1000)
    assert [m.id for m in page.data] == ["tiny", "claude-tiny"] and not page.has_more
    one = world.anthropic.models.retrieve("claude-tiny")
    assert one.type == "model" and one.created_at.year > 2000 and one.max_input_tokens == 4096


def test_the_page(world):
    reply = world.http.get("/")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/html")
    assert world.http.head("/").status_code == 200
    text = reply.text
    assert not re.search(r"https?://|@import|src=", text), "something from elsewhere"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    world.http.post(CHAT, json={"model": "m", "messages": USER})
    state = world.http.get("/v1/tr/state").json()
    for name in re.findall(r"\b(?:state|last|requests|conversations)\.(\w+)", text):
        assert f'"{name}"' in json.dumps(state) or name == "context", name


def test_the_state(world):
    world.engine.reused = lambda request: 3
    world.http.post(CHAT, json={"model": "m", "messages": USER})
    state = world.http.get("/v1/tr/state").json()
    assert state["queue"] == {"waiting": 0, "phase": "idle"} and state["healthy"]
    last = state["last"]
    assert last["cached_tokens"] == 3 and last["tokens_per_step"] == 2.5
    assert last["drafts"][0]["accepted_by_position"] == [4, 0]
    assert state["context"] == {"tokens": last["prompt_tokens"] + 10, "capacity": 4096}
    assert state["conversations"]["resident"] == 1
    assert world.http.delete("/v1/tr/state").json()["conversations"]["resident"] == 0


@pytest.mark.parametrize(
    "change, status",
    [
        ({}, "ok"),
        ({"phase": "warming"}, "warming up"),
        ({"beat": 1e3}, "the engine gives no sign"),
    ],
    ids=["ready", "warming", "stuck"],
)
def test_health_tells_what_is_the_matter(world, monkeypatch, change, status):
    now = replace(world.engine.state(), **change)
    monkeypatch.setattr(world.engine, "state", lambda: now)
    reply = world.http.get("/health")
    assert reply.json() == {"status": status} and (reply.status_code == 200) == (status == "ok")
    assert world.http.get("/v1/tr/state").json()["status"] == status


def test_calls_that_cannot_be_read_are_counted(world):
    def counted():
        text = world.http.get("/metrics").text
        found = re.search(r'tr_tool_calls_total{result="unparsed"} (\S+)', text)
        return float(found[1]) if found else 0.0

    before = counted()
    world.says("Fine. <tool_call>\nno call at all")
    world.http.post(CHAT, json={"model": "m", "messages": USER, "tools": [CHAT_TOOL]})
    assert counted() == before + 1
    assert world.http.get("/v1/tr/state").json()["last"]["unparsed_calls"] == 1


def test_the_figures(world):
    def figures():
        lines = world.http.get("/metrics").text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    before = figures()
    world.engine.reused = lambda request: 3
    world.says(f"{CALL}")
    for path, more in ((CHAT, {"tools": [CHAT_TOOL]}), ("/v1/messages", {"max_tokens": 9})):
        world.http.post(path, json={"model": "secret-name", "messages": USER, **more})
    world.http.post(CHAT, json={})
    world.http.get("/v1/secret-path")
    after = figures()

    def grown(name):
        return after[name] - before.get(name, 0)

    assert grown("tr_cached_tokens_total") == 6
    assert grown("tr_generated_tokens_total") > 20
    assert grown('tr_tool_calls_total{result="ok"}') == 1
    assert grown('tr_prefix_lookup_total{result="append"}') == 2
    assert grown('tr_draft_accepted_total{position="0",source="script"}') > 0
    labels = f'endpoint="{CHAT}",protocol="openai"'
    assert grown(f'tr_requests_total{{{labels},status="200"}}') == 1
    assert grown(f'tr_requests_total{{{labels},status="400"}}') == 1
    assert grown("tr_first_token_seconds_count") == 2
    assert after["tr_queue_depth"] == 0 and after["tr_resident_conversations"] == 1
    assert not any("secret" in name for name in after)


def test_texts_and_tokens(world):
    text = "Hi 🙂 <|im_end|>"
    ids = world.http.post("/tokenize", json={"content": text}).json()
    assert ids["tokens"] == world.tokenizer.encode(text, special=True)
    plain = world.http.post("/tokenize", json={"prompt": text, "special": False}).json()
    assert plain["count"] > ids["count"]
    back = world.http.post("/detokenize", json={"tokens": ids["tokens"]}).json()
    assert back["content"] == text
    told = world.http.post("/apply-template", json={"model": "m", "messages": USER}).json()
    assert "<|im_start|>user\nHi<|im_end|>" in told["prompt"]
    assert world.tokenizer.decode(told["tokens"]) == told["prompt"]
    for path, body in (("/tokenize", {}), ("/detokenize", {"tokens": [10**9]})):
        assert world.http.post(path, json=body).status_code == 400


def test_logs_hold_no_text(world, caplog):
    """One line of JSON per request, behind its reply, without what was asked or answered."""
    caplog.set_level(logging.DEBUG, "tr.serve")

    def posts():
        found = [json.loads(JsonLines().format(record)) for record in list(caplog.records)]
        return [line for line in found if line.get("method") == "POST"]

    secret = [{"role": "user", "content": "my password"}]
    world.says("your password")
    reply = world.http.post(CHAT, json={"model": "m", "messages": secret})
    until(lambda: len(posts()) == 1)
    world.http.post(CHAT, json={"model": "m", "messages": secret, "temperature": "my password"})
    until(lambda: len(posts()) == 2)
    first, second = posts()
    assert (first["status"], second["status"]) == (200, 400)
    assert first["request"] == reply.headers["x-request-id"] and first["path"] == CHAT
    assert not any("password" in JsonLines().format(record) for record in caplog.records)


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_no_pages_with_scripts_from_elsewhere(world, path):
    assert world.http.get(path).status_code == 404
