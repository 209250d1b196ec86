"""Claude Code's shape over HTTP: a title request before each turn, over another system prompt."""

import dataclasses

import pytest

from tr import overrides
from tr.assemble import assemble
from tr.decode.session import Sessions
from tr.serve.engine import Engine
from tr.serve.options import Options
from tr.serve.thinking import Defaults

CHUNK = 64
MAIN = "You help with code. Answer in short sentences. " * 4
TITLE = "Write a title of a few words for the conversation. " * 12
FORMAT = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"title": {"enum": ["Apples", "Pears"]}},
        "required": ["title"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def worlds():
    """Two servers over one model: one for the conversation with its side requests, one without."""
    from tests.serve.world import World

    config = overrides.load(["device=cpu", "threads=1", "kv.capacity_tokens=1024"], "serve")
    made = assemble(config)
    model = dataclasses.replace(made.model, chunk=CHUNK)
    found = []
    for _ in range(2):
        sessions = Sessions(model, made.draft(config), 1024, 2**28)
        engine = Engine(sessions, made.tokenizer, made.eos)
        found.append(World(made.tokenizer, engine, Options("tiny", Defaults(on=False))))
    yield found
    for world in found:
        world.close()


def body(system, messages, tokens, **more):
    heat = {"temperature": 0.8, "seed": 5}
    asked = {"model": "m", "system": system, "messages": messages, "max_tokens": tokens}
    return {**asked, **heat, **more}


def said(world, asked):
    """The answer's blocks and its usage, the prompt's tokens under "prompt"."""
    reply = world.http.post("/v1/messages", json=asked)
    assert reply.status_code == 200, reply.text
    used = reply.json()["usage"]
    used["prompt"] = used["input_tokens"] + used["cache_read_input_tokens"]
    return reply.json()["content"], used


def length(world, messages, **more):
    asked = {"model": "m", "messages": messages, **more}
    return world.http.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"]


@pytest.mark.parametrize("thinking, count", [("disabled", 10), ("adaptive", 3)])
def test_a_turn_costs_its_new_tokens(worlds, thinking, count):
    """At most the new tokens and one chunk, whatever ran in between; and the same words."""
    world, alone = worlds
    turns, asked, stands = [], [], 0
    for turn in range(count):
        question = f"Question {turn}, {thinking}: Tom has {turn + 3} apples. How many?"
        user = {"role": "user", "content": question}
        side = length(world, [user], system=TITLE) - length(world, [user])  # its system turn
        title, used = said(world, body(TITLE, [user], 6, output_config={"format": FORMAT}))
        assert title[0]["text"].startswith('{"')
        new = used["prompt"] - side if turn else used["prompt"]
        assert side > 2 * CHUNK and used["input_tokens"] <= new + CHUNK
        turns.append(user)
        request = body(MAIN, list(turns), 6, thinking={"type": thinking})
        content, used = said(world, request)
        assert used["input_tokens"] <= used["prompt"] - stands + CHUNK
        stands = used["prompt"] + used["output_tokens"]
        asked.append((request, content))
        turns.append({"role": "assistant", "content": content})
        assert stands > 2 * CHUNK  # or the bound says nothing
    for request, content in asked:
        assert said(alone, request)[0] == content
