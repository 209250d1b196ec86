"""The real engine over the embedded model, behind real sockets and clients."""

import json

import pytest

from tests.serve import order
from tr import overrides
from tr.assemble import assemble
from tr.decode.session import Sessions
from tr.serve.engine import Engine
from tr.serve.options import Options
from tr.serve.thinking import Defaults

APPLES = "Tom has 3 apples and buys 4 more. How many apples does he have?"
USER = [{"role": "user", "content": APPLES}]
GREEDY = {"temperature": 0, "max_tokens": 24}
SAME = {"max_tokens": 24, "extra_body": {"temperature": 0}}  # Anthropic's client has no such field
SURE = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def real():
    """A server whose figures are the embedded model's own."""
    from tests.serve.world import World

    config = overrides.load(["device=cpu", "threads=1", "kv.capacity_tokens=1024"], "serve")
    made = assemble(config)
    sessions = Sessions(made.model, made.draft(config), 1024, 2**28)
    engine = Engine(sessions, made.tokenizer, made.eos)
    options = Options("tiny", Defaults(on=False), least_room=16)
    world = World(made.tokenizer, engine, options)
    yield world
    world.close()


def test_all_protocols_say_the_same(real):
    chat = real.openai.chat.completions.create(model="m", messages=USER, **GREEDY)
    text = chat.choices[0].message.content
    assert len(text) > 20 and chat.usage.completion_tokens == 24
    told = real.anthropic.messages.create(model="m", messages=USER, **SAME)
    assert told.content[0].text == text and told.stop_reason == "max_tokens"
    limits = {"temperature": 0, "max_output_tokens": 24}
    assert real.openai.responses.create(model="m", input=APPLES, **limits).output_text == text
    body = {"model": "m", "messages": USER, **GREEDY}
    (streamed,) = order.chat(order.stream(real.http, "/v1/chat/completions", body))
    assert streamed["content"] == text
    message = order.message(order.stream(real.http, "/v1/messages", body))
    assert message["content"][0]["text"] == text
    prompt = real.http.post("/apply-template", json=body).json()["prompt"]
    plain = real.openai.completions.create(model="m", prompt=prompt, **GREEDY)
    assert plain.choices[0].text == text


def test_a_turn_costs_its_new_tokens(real):
    """And a title request between two turns takes nothing away."""
    first = real.anthropic.messages.create(model="m", messages=USER, **SAME)
    title = [{"role": "user", "content": "Write a title."}]
    real.anthropic.messages.create(model="m", system="Titles.", messages=title, **SAME)
    turns = [*USER, {"role": "assistant", "content": first.content[0].text}]
    turns += [{"role": "user", "content": "And now?"}]
    count = real.anthropic.messages.count_tokens(model="m", messages=turns).input_tokens
    second = real.anthropic.messages.create(model="m", messages=turns, **SAME).usage
    assert second.input_tokens + second.cache_read_input_tokens == count
    known = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.cache_read_input_tokens >= known - 8  # all but the opening of the answer
    assert second.input_tokens < count - known + 16


def test_sampling_depends_on_the_seed_alone(real):
    fields = {"temperature": 1.0, "max_tokens": 24, "messages": USER, "model": "m"}
    ask = real.openai.chat.completions.create
    texts = [ask(seed=seed, **fields).choices[0].message.content for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    both = ask(seed=5, n=2, **fields).choices
    assert [c.message.content for c in both] == [texts[0], texts[2]]


def test_formats_and_demanded_calls(real):
    """The embedded model is too small to follow them by itself."""
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": SURE}}
    fields = {"model": "m", "messages": USER, "temperature": 0, "max_tokens": 200}
    ask = real.openai.chat.completions.create
    (told,) = ask(**fields, response_format=wanted).choices
    assert told.finish_reason == "stop"
    assert isinstance(json.loads(told.message.content)["sure"], bool)
    tools = [{"name": "be", "description": "Be.", "input_schema": SURE}]
    called = {**SAME, "max_tokens": 300, "tools": tools, "tool_choice": {"type": "any"}}
    told = real.anthropic.messages.create(model="m", messages=USER, **called)
    assert told.stop_reason == "tool_use" and told.content[-1].name == "be"
    assert isinstance(told.content[-1].input["sure"], bool)


def test_a_schema_that_no_grammar_takes(real):
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": bad}}
    body = {"model": "m", "messages": USER, "response_format": wanted, "stream": True}
    reply = real.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "response_format" and "response_format: " in error["message"]
    body = {"model": "m", "messages": USER, "logit_bias": {"99999": 1}}
    error = real.http.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "logit_bias"


def test_logprobs_are_of_the_tokens_told(real):
    ask = real.openai.completions.create
    told = ask(model="m", prompt="One two three", max_tokens=4, temperature=0, logprobs=2)
    shown = told.choices[0].logprobs
    for token, value, top in zip(
        shown.tokens, shown.token_logprobs, shown.top_logprobs, strict=True
    ):
        assert value <= 0 and max(top, key=top.get) == token
