"""Streams as they went over the wire: each event of the clients' own type, all in a legal order."""

import json
from typing import Any, get_args

import anthropic.types
import openai.types.responses
from httpx import Client
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

CHAT = TypeAdapter(ChatCompletionChunk)
COMPLETION = TypeAdapter(Completion)


def by_type(union: Any) -> dict[str, TypeAdapter]:
    """An adapter for each member of a union, by the word in its `type`."""
    members = get_args(get_args(union)[0]) or get_args(union)
    words = {get_args(m.model_fields["type"].annotation)[0]: m for m in members}
    return {word: TypeAdapter(member) for word, member in words.items()}


MESSAGE = by_type(anthropic.types.RawMessageStreamEvent)
RESPONSE = by_type(openai.types.responses.ResponseStreamEvent)

Frame = tuple[str, Any]  # name and data; comments have the name ":"


def stream(http: Client, path: str, body: dict[str, Any]) -> list[Frame]:
    """All frames of a streamed answer, comments included."""
    with http.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        return frames(reply.read().decode())


def frames(text: str) -> list[Frame]:
    assert text.endswith("\n\n")
    found: list[Frame] = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            found.append((":", block[1:].strip()))
            continue
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert set(lines) <= {"event", "data"}, block
        data = lines["data"]
        found.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return found


def data(found: list[Frame]) -> list[Any]:
    return [value for name, value in found if name != ":"]


def chat(found: list[Frame], answers: int = 1, used: bool = False) -> list[dict[str, Any]]:
    """Role, pieces, one finish reason for each answer, the usage last, [DONE]; the answers."""
    *chunks, done = data(found)
    assert done == "[DONE]" and all(name in ("", ":") for name, _ in found)
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    told: list[dict[str, Any]] = [{"calls": []} for _ in range(answers)]
    for place, chunk in enumerate(chunks):
        CHAT.validate_python(chunk)
        if not chunk["choices"]:
            assert used and place == len(chunks) - 1 and chunk["usage"]
            told[0]["usage"] = chunk["usage"]
            continue
        assert not chunk.get("usage")
        (choice,) = chunk["choices"]
        one, delta = told[choice["index"]], choice["delta"]
        assert "reason" not in one, "something follows the finish reason"
        if "role" in delta:
            assert "role" not in one
            one.update(role=delta["role"], content="", reasoning_content="", logprobs=[])
        assert one["role"] == "assistant"
        for key in ("content", "reasoning_content"):
            one[key] += delta.get(key, "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(one["calls"]) and call["type"] == "function"
                one["calls"].append(
                    {"id": call["id"], "name": call["function"]["name"], "text": ""}
                )
            else:
                assert call["index"] == len(one["calls"]) - 1 and "name" not in call["function"]
            one["calls"][-1]["text"] += call["function"]["arguments"]
        if choice["logprobs"]:
            one["logprobs"] += choice["logprobs"]["content"]
        if choice["finish_reason"]:
            one["reason"] = choice["finish_reason"]
    assert all("reason" in one for one in told) and ("usage" in told[0]) == used
    return told


def completions(found: list[Frame], answers: int = 1) -> list[dict[str, Any]]:
    *chunks, done = data(found)
    assert done == "[DONE]"
    told: list[dict[str, Any]] = [
        {"text": "", "tokens": [], "reason": None} for _ in range(answers)
    ]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        # Null until the end, and for a prompt's first token, whatever the types say.
        typed = {**choice, "finish_reason": choice["finish_reason"] or "stop"}
        if choice["logprobs"]:
            lists = choice["logprobs"].items()
            typed["logprobs"] = {k: [x for x in values if x is not None] for k, values in lists}
        COMPLETION.validate_python({**chunk, "choices": [typed]})
        one = told[choice["index"]]
        assert one["reason"] is None
        one["text"] += choice["text"]
        one["tokens"] += (choice["logprobs"] or {}).get("tokens", [])
        one["reason"] = choice["finish_reason"]
    assert all(one["reason"] for one in told)
    return told


def message(found: list[Frame]) -> dict[str, Any]:
    """start, one block at a time from index 0 on, delta, stop; the message."""
    whole: dict[str, Any] = {}
    opened: dict[str, Any] | None = None
    state = "new"
    for name, event in found:
        assert name == event["type"], "event lines and types differ"
        if name == "ping":
            assert state != "new"
            continue
        MESSAGE[name].validate_python(event)
        if name == "message_start":
            assert state == "new" and event["message"]["content"] == []
            whole, state = event["message"], "open"
        elif name == "content_block_start":
            assert state == "open" and opened is None
            assert event["index"] == len(whole["content"])
            begun: dict[str, Any] = event["content_block"]
            more = {"json": ""} if begun["type"] == "tool_use" else {}
            whole["content"].append({**begun, **more})
            opened = begun
        elif name == "content_block_delta":
            assert state == "open" and opened is not None
            assert event["index"] == len(whole["content"]) - 1
            block, delta = whole["content"][-1], event["delta"]
            key = {
                "text_delta": "text",
                "thinking_delta": "thinking",
                "signature_delta": "signature",
                "input_json_delta": "json",
            }[delta["type"]]
            assert key in block, f"{delta['type']} in a block of {block['type']}"
            piece = next(value for field, value in delta.items() if field != "type")
            block[key] += piece
        elif name == "content_block_stop":
            assert opened is not None and event["index"] == len(whole["content"]) - 1
            assert opened["type"] != "thinking" or whole["content"][-1]["signature"]
            opened = None
        elif name == "message_delta":
            assert state == "open" and opened is None and whole["content"]
            whole |= event["delta"]
            whole["usage"] |= event["usage"]
            state = "ending"
        else:
            assert name == "message_stop" and state == "ending"
            state = "over"
    assert state == "over"
    for block in whole["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json") or "{}")
    return whole


def response(found: list[Frame]) -> dict[str, Any]:
    """created, in_progress, items one after another, one last word; the response."""
    events = [(name, event) for name, event in found if name != ":"]
    assert [e["sequence_number"] for _, e in events] == list(range(len(events)))
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    opened = False
    for name, event in events:
        assert name == event["type"]
        RESPONSE[name].validate_python(event)
        if name == "response.output_item.added":
            assert not opened and event["output_index"] == len(items)
            items.append({"item": event["item"], "text": "", "done": None})
            opened = True
        elif name == "response.output_item.done":
            assert opened and event["output_index"] == len(items) - 1
            assert event["item"]["id"] == items[-1]["item"]["id"]
            items[-1]["done"] = event["item"]
            opened = False
        elif "output_index" in event:
            assert opened and event["output_index"] == len(items) - 1
            assert event["item_id"] == items[-1]["item"]["id"]
            if name.endswith(".delta"):
                items[-1]["text"] += event["delta"]
            elif name in ("response.output_text.done", "response.reasoning_text.done"):
                assert event["text"] == items[-1]["text"]
            elif name == "response.function_call_arguments.done":
                assert event["arguments"] == items[-1]["text"]
    last, whole = events[-1]
    assert last in ("response.completed", "response.incomplete") and not opened
    assert last == f"response.{whole['response']['status']}"
    assert whole["response"]["output"] == [one["done"] for one in items]
    return whole["response"]
