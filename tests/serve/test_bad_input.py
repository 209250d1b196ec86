"""What no client should send: a 4xx that names the field, in the protocol's shape, and no more."""

import gzip
import json
import zlib

import pytest

from tests.serve.texts import CHAT_TOOL, USER

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
RESPONSES = "/v1/responses"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


def function(**fields):
    return {"type": "function", "function": {"name": "f", **fields}}


def call(arguments):
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "tool_calls": [made]}, {"role": "user", "content": "x"}]


CHATS = {
    "no_messages": ({"messages": None}, "messages"),
    "empty_messages": ({"messages": []}, "messages"),
    "a_string": ({"messages": "Hi"}, "messages"),
    "strings": ({"messages": ["Hi"]}, "messages.0"),
    "unknown_role": ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    "no_role": ({"messages": [{"content": "x"}]}, "messages[0].role"),
    "role_list": ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
    "content_number": ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    "image": ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    "part": ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "content[0].type"),
    "no_text": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "[0].text"),
    "tool_calls": ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "[0].tool_calls"),
    "temperature": ({"temperature": 9}, "temperature"),
    "temperature_text": ({"temperature": "hot"}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "penalty": ({"presence_penalty": -3}, "presence_penalty"),
    "bias": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "bias_size": ({"logit_bias": {"5": 1000}}, "logit_bias"),
    "n": ({"n": 0}, "n"),
    "many": ({"n": 1000}, "n"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "stop": ({"stop": ["a", ""]}, "stop"),
    "stops": ({"stop": ["a"] * 17}, "stop"),
    "top_logprobs": ({"top_logprobs": 3}, "top_logprobs"),
    "format": ({"response_format": {"type": "xml"}}, "response_format"),
    "schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "effort": ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    "kwargs": ({"chat_template_kwargs": {"enable_thinking": "x"}}, "enable_thinking"),
    "tools": ({"tools": [5]}, "tools"),
    "tool_kind": ({"tools": [{"type": "magic"}]}, "tools[0].type"),
    "tool_name": ({"tools": [function(name="")]}, "tools[0].function.name"),
    "tool_twice": ({"tools": [CHAT_TOOL, CHAT_TOOL]}, "tools"),
    "parameters": ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
    "choice": ({"tools": [CHAT_TOOL], "tool_choice": "never"}, "tool_choice"),
    "choice_name": (
        {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    "both": (
        {"tools": [CHAT_TOOL], "response_format": {"type": "json_object"}},
        "response_format",
    ),
    "demand": ({"tool_choice": "required"}, "tool_choice"),
    "unsupported": ({"guided_regex": "a+"}, "guided_regex"),
    "audio": ({"modalities": ["text", "audio"]}, "modalities"),
}


@pytest.mark.parametrize("name", CHATS)
def test_chat(world, name):
    fields, param = CHATS[name]
    reply = world.http.post(CHAT, json={"model": "m", "messages": USER, **fields})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and param in error["message"]
    assert not world.engine.seen


ANTHROPICS = {
    "no_max_tokens": ({"max_tokens": None}, "max_tokens"),
    "no_messages": ({"messages": None}, "messages"),
    "empty": ({"messages": []}, "messages"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "no_content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "image": ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0]"),
    "block": ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "content[0].type"),
    "input": (
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": "x"}]}
            ]
        },
        "content[0].input",
    ),
    "system": ({"system": [{"type": "image"}]}, "system[0]"),
    "thinking": ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    "budget": ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens"),
    "effort": ({"output_config": {"effort": "none"}}, "output_config.effort"),
    "format": ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    "choice": ({"tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice"),
    "stop": ({"stop_sequences": [""]}, "stop_sequences"),
    "temperature": ({"temperature": -1}, "temperature"),
}


@pytest.mark.parametrize("name", ANTHROPICS)
def test_messages(world, name):
    fields, param = ANTHROPICS[name]
    body = {"model": "m", "max_tokens": 100, "messages": USER, **fields}
    reply = world.http.post(MESSAGES, json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and param in error["message"]


@pytest.mark.parametrize(
    "items, param",
    [
        ([], "input"),
        ([{"type": "message", "role": "wizard", "content": "x"}], "input[0].role"),
        ([{"type": "item_reference", "id": "x"}], "input[0].type"),
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0]"),
    ],
    ids=["empty", "role", "reference", "call_id", "image"],
)
def test_responses(world, items, param):
    reply = world.http.post(RESPONSES, json={"model": "m", "input": items})
    assert reply.status_code == 400 and param in reply.json()["error"]["message"]


RAW = {
    "empty": b"",
    "broken": b'{"messages": [',
    "no_object": b"[1, 2]",
    "a_word": b"hello",
    "not_utf8": b'{"model": "\xff"}',
    "deep": b"[" * 100_000,
    "deep_tool": b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],'
    b'"tools":[{"name":"f","input_schema":' + b'{"a":' * 700 + b"1" + b"}" * 700 + b"}]}",
    "long_number": b'{"model":"m","max_tokens":' + b"9" * 5000 + b',"messages":[]}',
}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_request(world, path, name):
    reply = world.http.post(path, content=RAW[name])
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert world.http.post(CHAT, json={"model": "m", "messages": USER}).status_code == 200


def test_numbers_that_json_does_not_have(world):
    for word in ("NaN", "Infinity", "-Infinity"):
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            body = json.dumps({"model": "m", "messages": USER})[:-1] + f', "{name}": {word}}}'
            reply = world.http.post(CHAT, content=body)
            assert reply.status_code == 400 and name in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "arguments", ["", "null", "[1, 2]", "{broken", "5", None, {"a": 1}, '{"a": {"b": []}}'], ids=str
)
def test_odd_arguments_of_earlier_calls_are_read(world, arguments):
    """They stay in the history: refusing them would end the conversation."""
    tools = [function(parameters={"type": "object", "properties": {"a": {}, "b": {}}})]
    body = {"model": "m", "messages": call(arguments), "tools": tools}
    assert world.http.post(CHAT, json=body).status_code == 200


def test_halves_of_characters(world):
    """A lone surrogate is legal JSON, but no text."""
    for body in (
        '{"model": "\\ud83d", "messages": [{"role": "user", "content": "Hi"}]}',
        '{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}',
        '{"model": "m", "messages": [{"role": "user", "content": "x"}], "stop": "\\ud83d"}',
    ):
        for path in (CHAT, MESSAGES):
            sent = body[:-1] + ', "max_tokens": 9}'
            assert world.http.post(path, content=sent).status_code in (200, 400)
    for path in ("/tokenize", "/v1/completions"):
        sent = '{"content": "\\ud83d", "prompt": "\\ud83d"}'
        assert world.http.post(path, content=sent).status_code == 400


CYCLE = {"$defs": {"n": {"$ref": "#/$defs/n"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
ABSURD = [
    CYCLE,
    TREE,
    {"$ref": "#"},
    {"$ref": "http://example.com/schema.json"},
    {"type": "nothing"},
    {"type": []},
    {"properties": []},
    {"properties": {"a": 5}},
    {"properties": {"a": {"anyOf": "x"}}},
    {"properties": {"a": {"enum": {}}}},
    {"anyOf": [{"allOf": [{"oneOf": []}]}] * 50},
    {"properties": {f"p{n}": {"type": "string"} for n in range(2000)}},
]


@pytest.mark.parametrize("schema", ABSURD, ids=lambda s: json.dumps(s)[:30])
def test_cyclic_and_absurd_schemas(world, schema):
    """Taken or refused, by name, and never a fault."""
    world.says(
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    )
    tools = [function(parameters=schema)]
    chat = world.http.post(CHAT, json={"model": "m", "messages": USER, "tools": tools})
    assert chat.status_code in (200, 400), chat.text
    told = chat.json().get("error", {"message": "tools"})["message"]
    assert "tools" in told or "maximum context length" in told
    typed = [{"name": "f", "input_schema": schema}]
    body = {"model": "m", "max_tokens": 99, "messages": USER, "tools": typed}
    assert world.http.post(MESSAGES, json=body).status_code in (200, 400)


def test_large_bodies(world):
    """10 MB are read, and are then too long a prompt; more than the limit is 413."""
    body = {
        "model": "m",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "a b " * 2_500_000}],
    }
    for path in (CHAT, MESSAGES):
        reply = world.http.post(path, json=body)
        assert reply.status_code == 400 and "tokens > 4096 maximum" in reply.text
    content = json.dumps({"x": "y" * 12_000_000})
    reply = world.http.post(CHAT, content=content)
    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "invalid_request_error")
    reply = world.http.post(MESSAGES, content=content)
    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "request_too_large")
    reply = world.http.post(MESSAGES, content=(b"x" * 2**20 for _ in range(13)))
    assert reply.status_code == 413, "a body that does not say its length"


def test_compressed_bodies(world):
    body = json.dumps({"model": "m", "messages": USER}).encode()
    packed = {"gzip": gzip.compress(body), "deflate": zlib.compress(body)}
    for encoding, content in packed.items():
        reply = world.http.post(CHAT, content=content, headers={"content-encoding": encoding})
        assert reply.status_code == 200, reply.text
    bomb = gzip.compress(b" " * 100_000_000)
    cases = [(bomb, "gzip", 413), (b"nonsense", "gzip", 400), (body, "br", 400)]
    for content, encoding, status in [*cases, (packed["gzip"][:-9], "gzip", 400)]:
        reply = world.http.post(CHAT, content=content, headers={"content-encoding": encoding})
        assert reply.status_code == status and reply.json()["error"]["message"]


def test_any_content_type_is_json(world):
    content = json.dumps({"model": "m", "messages": USER})
    for kind in ("text/plain", "application/json; charset=utf-8", "application/octet-stream"):
        reply = world.http.post(CHAT, content=content, headers={"content-type": kind})
        assert reply.status_code == 200, reply.text
