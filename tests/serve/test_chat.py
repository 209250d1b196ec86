"""Chat Completions through OpenAI's own client, and as it goes over the wire."""

import json

import pytest
from pydantic import BaseModel

from tests.serve import order
from tests.serve.texts import ARGUMENTS, CALL, CHAT_TOOL, THOUGHT, TWO_CALLS, USER

PATH = "/v1/chat/completions"


def body(**fields):
    return {"model": "any", "messages": USER, **fields}


def test_an_answer_and_its_usage(world):
    world.engine.reused = lambda request: 5
    told = world.openai.chat.completions.create(model="any", messages=USER)
    choice, used = told.choices[0], told.usage
    assert (choice.message.content, choice.finish_reason) == ("Hello, world.", "stop")
    assert told.model == "any" and told.id.startswith("chatcmpl-")
    assert choice.message.tool_calls is None and choice.logprobs is None
    assert used.prompt_tokens == len(world.engine.seen[0].ids)
    assert used.prompt_tokens_details.cached_tokens == 5
    assert used.total_tokens == used.prompt_tokens + used.completion_tokens
    details = used.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (6, 2)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
@pytest.mark.parametrize(
    "text, fields",
    [
        ("Hello, world.", {}),
        ("", {}),
        ("中文 and 🙂 and é.", {}),
        (THOUGHT, {"enable_thinking": True}),
        (TWO_CALLS, {"tools": [CHAT_TOOL]}),
        (f"thought\n</think>\n\n{CALL}", {"enable_thinking": True, "tools": [CHAT_TOOL]}),
        ("one STOP two", {"stop": "STOP"}),
        ("Hello, world.", {"max_tokens": 4}),
    ],
    ids=["plain", "empty", "wide", "thought", "calls", "thought_call", "stop", "length"],
)
def test_streamed_equals_whole(world, text, fields, size):
    """However many tokens a step has."""
    world.says(text, size=size)
    reply = world.http.post(PATH, json=body(**fields))
    whole, used = reply.json()["choices"][0], reply.json()["usage"]
    fields = {**fields, "stream_options": {"include_usage": True}}
    (told,) = order.chat(order.stream(world.http, PATH, body(**fields)), used=True)
    message = whole["message"]
    assert told["content"] == (message["content"] or "")
    assert told["reasoning_content"] == message.get("reasoning_content", "")
    calls = [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
    ]
    assert [(c["name"], c["text"]) for c in told["calls"]] == calls
    assert (told["reason"], told["usage"]) == (whole["finish_reason"], used)


def test_reasoning_has_its_own_field(world):
    world.says(THOUGHT)
    told = world.openai.chat.completions.create(
        model="m", messages=USER, reasoning_effort="low"
    ).choices[0]
    assert told.message.content == "Seven 🙂."
    assert told.message.model_extra["reasoning_content"] == "I add them: 3 + 4."
    assert world.engine.seen[0].settings.temperature == 1.0  # the preset for thoughts


def test_tool_calls(world):
    world.says(TWO_CALLS)
    told = world.openai.chat.completions.create(model="m", messages=USER, tools=[CHAT_TOOL])
    message = told.choices[0].message
    assert told.choices[0].finish_reason == "tool_calls" and message.content.strip() == "I look."
    assert [c.function.name for c in message.tool_calls] == ["weather", "weather"]
    assert json.loads(message.tool_calls[0].function.arguments) == ARGUMENTS
    assert len({c.id for c in message.tool_calls}) == 2
    world.says(CALL)
    alone = world.openai.chat.completions.create(model="m", messages=USER, tools=[CHAT_TOOL])
    assert alone.choices[0].message.content is None
    results = [
        {"role": "tool", "tool_call_id": c.id, "content": "Sun."} for c in message.tool_calls
    ]
    world.says("Sunny.")
    history = [*USER, message.model_dump(exclude_none=True), *results]
    again = world.openai.chat.completions.create(model="m", messages=history, tools=[CHAT_TOOL])
    assert again.choices[0].message.content == "Sunny."
    prompt = world.tokenizer.decode(world.engine.seen[-1].ids)
    assert prompt.count("<function=weather>\n<parameter=city>") == 2 and "Sun." in prompt


def test_tool_choice_none_keeps_the_prompt(world):
    ask = world.openai.chat.completions.create
    world.says(CALL)
    first = ask(model="m", messages=USER, tools=[CHAT_TOOL])
    second = ask(model="m", messages=USER, tools=[CHAT_TOOL], tool_choice="none")
    assert first.choices[0].message.tool_calls and not second.choices[0].message.tool_calls
    assert CALL.strip() in second.choices[0].message.content
    assert world.engine.seen[0].ids == world.engine.seen[1].ids


def test_demanded_calls_and_formats_become_constraints(world):
    ask = world.openai.chat.completions.create
    named = {"type": "function", "function": {"name": "weather"}}
    ask(model="m", messages=USER, tools=[CHAT_TOOL], tool_choice="required")
    ask(model="m", messages=USER, tools=[CHAT_TOOL], tool_choice=named)
    ask(model="m", messages=USER, response_format={"type": "json_object"})
    ask(model="m", messages=USER, tools=[CHAT_TOOL], parallel_tool_calls=False)
    one, two, three, four = world.engine.seen
    assert one.constraint.required and two.constraint.forced == "weather"
    assert three.constraint.kind == "json_object" and not four.parallel_tool_calls

    class Person(BaseModel):
        name: str
        age: int

    world.says('{"name": "Ann", "age": 7}')
    parsed = world.openai.chat.completions.parse(model="m", messages=USER, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ann", age=7)
    assert world.engine.seen[-1].constraint.schema["properties"].keys() == {"name", "age"}


def test_a_cut_call_is_no_call(world):
    cut = CALL[: CALL.index("3\n")]
    world.says(cut, end=False)
    fields = {"tools": [CHAT_TOOL], "max_tokens": len(world.tokenizer.encode(cut, special=True))}
    whole = world.http.post(PATH, json=body(**fields)).json()["choices"][0]
    assert whole["finish_reason"] == "length" and "tool_calls" not in whole["message"]
    assert "São Paulo" in whole["message"]["content"]
    (told,) = order.chat(order.stream(world.http, PATH, body(**fields)))
    assert told["reason"] == "length"
    for call in told["calls"]:
        with pytest.raises(ValueError):
            json.loads(call["text"])


def test_every_setting_arrives(world):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "6": 1.5},
        "seed": 42,
    }
    more = {"min_tokens": 2, "ignore_eos": True, "stop": ["a", "b"], "max_completion_tokens": 9}
    assert world.http.post(PATH, json=body(**fields, **more, max_tokens=5)).status_code == 200
    request = world.engine.seen[0]
    for name, value in fields.items():
        wanted = {5: -100, 6: 1.5} if name == "logit_bias" else value
        assert getattr(request.settings, name) == wanted
    assert (request.min_tokens, request.ignore_eos, request.stop) == (2, True, ("a", "b"))
    assert request.max_tokens == 9
    world.http.post(PATH, json=body())
    world.http.post(PATH, json=body())
    seeds = [r.settings.seed for r in world.engine.seen[1:]]
    assert seeds[0] != seeds[1], "requests without a seed have one of their own"
    assert world.engine.seen[1].max_tokens == 4096 - len(request.ids)


def test_several_answers_and_logprobs(world):
    world.says("One.", "Two.", "Three.")
    told = world.openai.chat.completions.create(
        model="m", messages=USER, n=3, seed=2**64 - 1, logprobs=True, top_logprobs=2
    )
    assert [c.message.content for c in told.choices] == ["One.", "Two.", "Three."]
    assert [r.settings.seed for r in world.engine.seen] == [2**64 - 1, 0, 1]
    prompt = len(world.engine.seen[0].ids)
    assert told.usage.prompt_tokens == prompt and told.usage.completion_tokens > 6
    tokens = told.choices[0].logprobs.content
    assert "".join(t.token for t in tokens).startswith("One.")
    assert bytes(tokens[0].bytes).decode() == tokens[0].token and tokens[0].logprob == -0.25
    assert len(tokens[0].top_logprobs) == 2
    world.says("One.", "Two.")
    fields = {"n": 2, "logprobs": True, "stream_options": {"include_usage": True}}
    first, second = order.chat(order.stream(world.http, PATH, body(**fields)), 2, used=True)
    assert (first["content"], second["content"]) == ("One.", "Two.")
    assert [t["token"] for t in first["logprobs"]] == [t.token for t in tokens]


def test_history_in_all_its_forms(world):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    history = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}],
        },
        {"role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sun."},
        {"role": "assistant", "content": "It is sunny.", "reasoning": "because"},
        {"role": "system", "content": "Two tokens left."},
        {"role": "user", "content": "And now?"},
        {"role": "user", "content": "Well?"},
    ]
    reply = world.http.post(PATH, json=body(messages=history))
    assert reply.status_code == 200, reply.text
    prompt = world.tokenizer.decode(world.engine.seen[0].ids)
    words = ("Be brief.", "Hi you", "why", "Sun.", "because", "sunny.", "Two tokens", "And now?")
    places = [prompt.index(word) for word in words]
    assert places == sorted(places)


def test_an_answer_is_continued_where_asked(world):
    history = [*USER, {"role": "assistant", "content": "Hello, w"}]
    assert world.http.post(PATH, json=body(messages=history)).status_code == 400
    reply = world.http.post(PATH, json=body(messages=history, continue_final_message=True))
    assert reply.status_code == 200
    assert world.tokenizer.decode(world.engine.seen[0].ids).endswith("Hello, w")


def test_thinking_switches(world):
    budget = {"enable_thinking": True, "thinking_budget": 30}
    cases = [
        ({}, False, None),
        ({"reasoning_effort": "high"}, True, None),
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning": {"effort": "low"}}, True, None),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True, None),
        ({"reasoning_effort": "high", "enable_thinking": False}, False, None),
        (budget, True, 30),
        ({"enable_thinking": True, "thinking_budget": 0}, False, None),
    ]
    for fields, thinks, tokens in cases:
        world.says("x</think>y" if thinks else "y")
        assert world.http.post(PATH, json=body(**fields)).status_code == 200, fields
        assert world.engine.seen[-1].thinking == thinks, fields
        assert world.engine.seen[-1].thinking_budget == tokens
    prompts = [world.tokenizer.decode(r.ids) for r in world.engine.seen]
    assert "effort" not in prompts[1] and "effort" in prompts[3]


def test_timings_where_asked(world):
    told = world.http.post(PATH, json=body(timings=True)).json()["timings"]
    assert told["predicted_n"] == 10 and told["draft_n_accepted"] == 6 and told["steps"] == 4
