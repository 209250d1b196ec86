"""Completions: plain text in and out, echoes and logarithms as evaluations ask for them."""

import pytest

from tests.serve import order
from tests.serve.texts import CALL

PATH = "/v1/completions"


def body(**fields):
    return {"model": "any", "prompt": "One two", "max_tokens": 40, **fields}


def test_text_goes_on(world):
    told = world.openai.completions.create(**body())
    assert (told.choices[0].text, told.choices[0].finish_reason) == ("Hello, world.", "stop")
    request = world.engine.seen[0]
    assert request.raw and list(request.ids) == world.tokenizer.encode("One two")
    world.http.post(PATH, json={"prompt": "<|im_start|>user\nHi", "model": "m"})
    request = world.engine.seen[1]
    assert request.ids[0] == world.tokenizer.control["<|im_start|>"] and request.max_tokens == 16


def test_markup_is_text(world):
    world.says(CALL)
    text = world.openai.completions.create(**body(max_tokens=200)).choices[0].text
    assert text == CALL


def test_many_prompts_and_answers(world):
    ids = world.tokenizer.encode("Three")
    world.says("A", "B", "C", "D")
    told = world.openai.completions.create(**body(prompt=["One", "Two"], n=2))
    assert [c.text for c in told.choices] == ["A", "B", "C", "D"]
    assert [c.index for c in told.choices] == [0, 1, 2, 3]
    seen = world.engine.seen
    assert told.usage.prompt_tokens == len(seen[0].ids) + len(seen[2].ids)
    world.says("A", "B")
    told = world.openai.completions.create(**body(prompt=[ids, ids]))
    assert [c.text for c in told.choices] == ["A", "B"] and list(world.engine.seen[-1].ids) == ids


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"echo": True},
        {"logprobs": 2},
        {"echo": True, "logprobs": 2},
        {"echo": True, "logprobs": 2, "max_tokens": 0},
        {"prompt": ["One", "Two"], "n": 2, "echo": True},
        {"stop": ["wor"]},
    ],
    ids=str,
)
def test_streamed_equals_whole(world, fields, size):
    world.says("Hello, world 🙂.", size=size)
    whole = world.http.post(PATH, json=body(**fields)).json()
    told = order.completions(order.stream(world.http, PATH, body(**fields)), len(whole["choices"]))
    for one, choice in zip(told, whole["choices"], strict=True):
        assert (one["text"], one["reason"]) == (choice["text"], choice["finish_reason"])
        assert one["tokens"] == (choice["logprobs"] or {}).get("tokens", [])


def test_echo_with_logprobs(world):
    """What a log-likelihood is read from: every token of the prompt, the first without a number."""
    told = world.openai.completions.create(**body(echo=True, logprobs=1, max_tokens=0))
    shown = told.choices[0].logprobs
    assert told.choices[0].text == "One two" == "".join(shown.tokens)
    assert shown.token_logprobs[0] is None and None not in shown.token_logprobs[1:]
    assert shown.text_offset == [told.choices[0].text.index(t) for t in shown.tokens]
    assert world.engine.seen[0].prompt_logprobs == 1


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [10**9]}, "prompt[0]"),
        ({"prompt": ["x"] * 65}, "prompt"),
        ({"best_of": 4}, "best_of"),
        ({"suffix": "x"}, "suffix"),
    ],
    ids=str,
)
def test_what_is_not_there_is_refused_by_name(world, fields, param):
    reply = world.http.post(PATH, json=body(**fields))
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param
