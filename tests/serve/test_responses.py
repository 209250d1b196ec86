"""OpenAI's Responses through its own client, and as it goes over the wire."""

import json

import pytest
from pydantic import BaseModel

from tests.serve import order
from tests.serve.texts import ARGUMENTS, CALL, FLAT_TOOL, THOUGHT, TWO_CALLS

PATH = "/v1/responses"
THINKS = {"reasoning": {"effort": "medium"}}


def body(**fields):
    return {"model": "any", "input": "Hi", **fields}


def test_an_answer_and_its_usage(world):
    world.engine.reused = lambda request: 5
    told = world.openai.responses.create(**body())
    assert (told.output_text, told.status, told.model) == ("Hello, world.", "completed", "any")
    assert told.usage.input_tokens_details.cached_tokens == 5
    assert told.usage.total_tokens == told.usage.input_tokens + told.usage.output_tokens


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize(
    "text, fields",
    [
        ("Hello, world.", {}),
        ("", {}),
        ("中文 and 🙂 and é.", {}),
        (THOUGHT, {**THINKS, "include": ["reasoning.encrypted_content"]}),
        (TWO_CALLS, {"tools": [FLAT_TOOL]}),
        (f"thought\n</think>\n\n{CALL}", {**THINKS, "tools": [FLAT_TOOL]}),
        ("Hello, world.", {"max_output_tokens": 4}),
    ],
    ids=["plain", "empty", "wide", "thought", "calls", "thought_call", "length"],
)
def test_streamed_equals_whole(world, text, fields, size):
    world.says(text, size=size)
    whole = world.http.post(PATH, json=body(**fields)).json()
    told = order.response(order.stream(world.http, PATH, body(**fields)))
    for one in (whole, told):
        for item in (one, *one["output"]):
            for key in ("id", "call_id", "created_at"):
                item.pop(key, None)
    assert told == whole
    short = "max_output_tokens" in fields
    assert told["status"] == ("incomplete" if short else "completed")


def test_the_client_puts_a_stream_together(world):
    world.says(f"Why.\n</think>\n\nI look.\n\n{CALL}")
    with world.openai.responses.stream(**body(tools=[FLAT_TOOL], **THINKS)) as stream:
        kinds = [event.type for event in stream]
        told = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    thought, words, call = told.output
    assert thought.content[0].text == "Why." and words.content[0].text.strip() == "I look."
    assert json.loads(call.arguments) == ARGUMENTS and call.call_id

    class Person(BaseModel):
        name: str

    world.says('{"name": "Ann"}')
    parsed = world.openai.responses.parse(**body(), text_format=Person)
    assert parsed.output_parsed == Person(name="Ann")
    assert world.engine.seen[-1].constraint.kind == "json_schema"


def test_items_come_back_as_one_turn(world):
    """What a client that keeps all items sends next, the thought in its sealed form alone."""
    world.says(f"Why.\n</think>\n\nI look.\n\n{CALL}")
    sealed = {"include": ["reasoning.encrypted_content"], "tools": [FLAT_TOOL], **THINKS}
    told = world.http.post(PATH, json=body(**sealed)).json()
    thought = next(item for item in told["output"] if item["type"] == "reasoning")
    thought["content"] = None
    call = told["output"][-1]
    history = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": "Hi"},
        *told["output"],
        {"type": "function_call_output", "call_id": call["call_id"], "output": "Sun."},
        {"type": "web_search_call", "id": "w", "status": "completed"},
    ]
    reply = world.http.post(PATH, json=body(input=history, instructions="You help.", **sealed))
    assert reply.status_code == 200, reply.text
    prompt = world.tokenizer.decode(world.engine.seen[1].ids)
    words = ("You help.", "Be brief.", "Why.", "I look.", "<parameter=city>", "Sun.")
    places = [prompt.rindex(word) for word in words]
    assert places == sorted(places) and prompt.count("<|im_start|>assistant") == 2


def test_what_codex_sends(world):
    tools = [
        FLAT_TOOL,
        {
            "type": "namespace",
            "name": "files",
            "description": "Files.",
            "tools": [{**FLAT_TOOL, "name": "read"}],
        },
        {"type": "web_search", "external_web_access": False},
    ]
    fields = {
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "prompt_cache_key": "k",
        "client_metadata": {},
        "include": ["reasoning.encrypted_content"],
    }
    order.response(order.stream(world.http, PATH, body(**fields)))
    assert [t.name for t in world.engine.seen[0].tools] == ["weather", "files__read"]


def test_a_cut_call_is_never_done(world):
    cut = CALL[: CALL.index("3\n")]
    world.says(cut, end=False)
    most = len(world.tokenizer.encode(cut, special=True))
    asked = body(tools=[FLAT_TOOL], max_output_tokens=most)
    whole = world.http.post(PATH, json=asked).json()
    assert [item["type"] for item in whole["output"]] == ["message"]
    found = order.stream(world.http, PATH, asked)
    last, told = found[-1]
    assert last == "response.incomplete"
    done = [e["item"]["type"] for n, e in found if n == "response.output_item.done"]
    assert done == ["message"] == [item["type"] for item in told["response"]["output"]]


@pytest.mark.parametrize(
    "fields",
    [{"previous_response_id": "r"}, {"conversation": "c"}, {"background": True}],
    ids=lambda fields: next(iter(fields)),
)
def test_state_is_refused_by_name(world, fields):
    reply = world.http.post(PATH, json=body(**fields))
    assert reply.status_code == 400 and reply.json()["error"]["param"] == next(iter(fields))
