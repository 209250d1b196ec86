"""Anthropic's Messages through its own client, and as it goes over the wire."""

import threading

import pytest

from tests.serve import order
from tests.serve.texts import ARGUMENTS, CALL, MESSAGES_TOOL, THOUGHT, TWO_CALLS, USER

PATH = "/v1/messages"
ADAPTIVE = {"thinking": {"type": "adaptive"}}


def body(**fields):
    return {"model": "any", "max_tokens": 200, "messages": USER, **fields}


def test_an_answer_and_its_usage(world):
    """All of the prompt is the sum of three numbers."""
    world.engine.reused = lambda request: 5
    told = world.anthropic.messages.create(**body())
    assert [b.text for b in told.content] == ["Hello, world."]
    assert (told.stop_reason, told.stop_sequence, told.model) == ("end_turn", None, "any")
    used = told.usage
    assert used.cache_read_input_tokens == 5 and used.cache_creation_input_tokens == 0
    prompt = len(world.engine.seen[0].ids)
    assert used.input_tokens + used.cache_read_input_tokens == prompt
    count = world.anthropic.messages.count_tokens(model="any", messages=USER)
    assert count.input_tokens == prompt


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
@pytest.mark.parametrize(
    "text, fields",
    [
        ("Hello, world.", {}),
        ("", {}),
        ("中文 and 🙂 and é.", {}),
        (THOUGHT, ADAPTIVE),
        (THOUGHT, {"thinking": {"type": "adaptive", "display": "omitted"}}),
        (TWO_CALLS, {"tools": [MESSAGES_TOOL]}),
        (f"thought\n</think>\n\n{CALL}", {**ADAPTIVE, "tools": [MESSAGES_TOOL]}),
        ("one STOP two", {"stop_sequences": ["STOP"]}),
        ("Hello, world.", {"max_tokens": 4}),
    ],
    ids=["plain", "empty", "wide", "thought", "omitted", "calls", "thought_call", "stop", "length"],
)
def test_streamed_equals_whole(world, text, fields, size):
    world.says(text, size=size)
    whole = world.http.post(PATH, json=body(**fields)).json()
    told = order.message(order.stream(world.http, PATH, body(**fields)))
    for one in (whole, told):
        del one["id"]
        for block in one["content"]:
            block.pop("id", None)
    assert told == whole


def test_blocks_in_the_order_of_writing(world):
    world.says(f"Why.\n</think>\n\nI look.\n\n{CALL}")
    with world.anthropic.messages.stream(**body(tools=[MESSAGES_TOOL], **ADAPTIVE)) as stream:
        text = "".join(stream.text_stream)
        told = stream.get_final_message()
    thought, words, call = told.content
    assert (thought.type, thought.thinking) == ("thinking", "Why.") and thought.signature
    assert words.text == text and text.strip() == "I look."
    assert (call.name, call.input) == ("weather", ARGUMENTS)
    assert told.stop_reason == "tool_use"
    assert told.usage.output_tokens_details.thinking_tokens > 0
    shown = world.anthropic.messages.create(
        **body(tools=[MESSAGES_TOOL], thinking={"type": "adaptive", "display": "omitted"})
    )
    assert shown.content[0].thinking == "" and shown.content[0].signature == thought.signature
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sun.", "is_error": True}
    history = [
        *USER,
        {"role": "assistant", "content": [block.to_dict() for block in told.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
    ]
    world.says("Fine.")
    again = world.anthropic.messages.create(**body(messages=history, tools=[MESSAGES_TOOL]))
    assert again.content[0].text == "Fine."
    prompt = world.tokenizer.decode(world.engine.seen[-1].ids)
    assert prompt.index("Error: Sun.") < prompt.index("Go on.")


def test_the_turn_that_was_written_is_the_prompt_of_the_next(world):
    """An echoed answer comes back as the very tokens it was, so that nothing is read again."""
    world.says(f"Why.\n</think>\n\nI look.\n\n{CALL}")
    fields = {"tools": [MESSAGES_TOOL], **ADAPTIVE}
    told = world.anthropic.messages.create(**body(**fields))
    first = world.engine.seen[0]
    answer = world.tokenizer.encode(f"Why.\n</think>\n\nI look.\n\n{CALL}", special=True)
    result = {"type": "tool_result", "tool_use_id": told.content[-1].id, "content": "Sun."}
    history = [
        *USER,
        {"role": "assistant", "content": [block.to_dict() for block in told.content]},
        {"role": "user", "content": [result]},
    ]
    world.anthropic.messages.create(**body(messages=history, **fields))
    second = world.engine.seen[1].ids
    known = [*first.ids, *answer]
    assert list(second[: len(known)]) == known


def test_what_claude_code_sends(world):
    """Billing line, late system message, moving cache marks, efforts, betas."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.abc;"},
        {"type": "text", "text": "You help.", **mark},
        {"type": "text", "text": "Be brief."},
    ]
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", **mark}]},
        {"role": "system", "content": "Sub-tasks: none."},
    ]
    fields = {
        "system": system,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "{}"},
        "tools": [{**MESSAGES_TOOL, **mark}, {"type": "web_search_20250305", "name": "web_search"}],
    }
    world.says("Why.\n</think>\n\nHello.")
    asked = body(messages=turns, **fields)
    told = order.message(order.stream(world.http, f"{PATH}?beta=true", asked))
    assert [b["type"] for b in told["content"]] == ["thinking", "text"]
    first = world.engine.seen[0]
    prompt = world.tokenizer.decode(first.ids)
    assert "billing" not in prompt and "cache_control" not in prompt and "web_search" not in prompt
    places = [prompt.index(w) for w in ("You help.", "Be brief.", "Hi", "Sub-tasks: none.")]
    assert places == sorted(places) and first.thinking
    history = [
        {"role": "user", "content": "Hi"},
        turns[1],
        {"role": "assistant", "content": told["content"]},
        {"role": "user", "content": [{"type": "text", "text": "More", **mark}]},
    ]
    system[0]["text"] = "x-anthropic-billing-header: cc_version=2.1.def;"
    del system[1]["cache_control"]
    world.http.post(PATH, json=body(messages=history, **fields))
    second = world.engine.seen[1].ids
    assert list(second[: len(first.ids)]) == list(first.ids)


def test_thinking_is_off_without_the_field(world):
    world.says("Yes.")
    for fields in ({}, {"output_config": {"effort": "high"}}, {"thinking": {"type": "disabled"}}):
        world.anthropic.messages.create(**body(), extra_body=fields)
    assert not any(r.thinking for r in world.engine.seen)
    world.says("Why.</think>Yes.")
    fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
    world.anthropic.messages.create(**body(**fields))
    assert world.engine.seen[-1].thinking_budget == 1024
    fields["thinking"]["budget_tokens"] = 2000  # the answer ends first
    world.anthropic.messages.create(**body(**fields))
    assert world.engine.seen[-1].thinking and world.engine.seen[-1].thinking_budget is None


def test_demanded_calls_and_formats_become_constraints(world):
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    cases = [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "weather"}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    ]
    for fields in cases:
        tools = [MESSAGES_TOOL] if "tool_choice" in fields else []
        assert world.http.post(PATH, json=body(tools=tools, **fields)).status_code == 200
    one, two, three, four = world.engine.seen
    assert one.constraint.required and two.constraint.forced == "weather"
    assert three.constraint is None and not three.parallel_tool_calls
    assert four.constraint.schema == schema and four.side and not one.side


def test_a_cut_call_is_no_call(world):
    cut = CALL[: CALL.index("3\n")]
    world.says(cut, end=False)
    most = len(world.tokenizer.encode(cut, special=True))
    asked = body(tools=[MESSAGES_TOOL], max_tokens=most)
    whole = world.http.post(PATH, json=asked).json()
    assert whole["stop_reason"] == "max_tokens"
    assert [b["type"] for b in whole["content"]] == ["text"]
    with world.anthropic.messages.stream(**asked) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"


def test_an_answer_is_continued(world):
    history = [*USER, {"role": "assistant", "content": "Hello, w"}]
    assert world.anthropic.messages.create(**body(messages=history)).content
    assert world.tokenizer.decode(world.engine.seen[0].ids).endswith("Hello, w")


def test_results_that_cannot_be_read_do_not_end_a_conversation(world):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
    }
    history = [
        *USER,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        },
        {"role": "user", "content": [result, document]},
    ]
    assert world.http.post(PATH, json=body(messages=history)).status_code == 200
    prompt = world.tokenizer.decode(world.engine.seen[0].ids)
    assert "image not shown" in prompt and prompt.index("image") < prompt.index("D")


def test_a_long_wait_keeps_clients(world):
    """Pings at first; then an open block with empty deltas, which is the answer's own."""
    go = threading.Event()

    def script(request):
        go.wait(10)
        yield world.tokenizer.encode("Why.</think>Yes.", special=True)
        yield [world.tokenizer.eos[0]]

    world.engine.script = script
    threading.Timer(0.9, go.set).start()
    found = order.stream(world.http, PATH, body(**ADAPTIVE))
    told = order.message(found)
    assert [b["type"] for b in told["content"]] == ["thinking", "text"]
    names = [name for name, _ in found]
    assert names[0] == "message_start" and names[1] == "ping"
    opened = names.index("content_block_start")
    empty = [e for n, e in found[opened:] if n == "content_block_delta"][:2]
    assert [e["delta"] for e in empty] == [{"type": "thinking_delta", "thinking": ""}] * 2


def test_counting_does_not_wait_for_the_device(world):
    go = threading.Event()

    def script(request):
        yield None
        go.wait(10)

    world.engine.script = script
    waiting = threading.Thread(target=lambda: world.http.post(PATH, json=body()))
    waiting.start()
    counts = [world.anthropic.messages.count_tokens(model="m", messages=USER) for _ in range(5)]
    go.set()
    waiting.join()
    assert len({c.input_tokens for c in counts}) == 1
