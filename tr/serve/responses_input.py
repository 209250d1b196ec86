"""Responses' items as neutral messages: the items of one answer become one assistant's message."""

import base64
from collections.abc import Mapping
from typing import Any

from tr.serve.conversation import Call, Message
from tr.serve.errors import invalid
from tr.serve.logs import tell
from tr.serve.parts import objects, string, texts

ROLES = ("system", "developer", "user", "assistant")
TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
THOUGHTS = {"reasoning_text": "text", "summary_text": "text", "text": "text"}
SEAL = b"tr:"  # begins our own sealed thoughts


def seal(thought: str) -> str:
    """A thought that a client which keeps nothing else sends back; no secret."""
    return base64.b64encode(SEAL + thought.encode("utf-8", "replace")).decode()


def unseal(sealed: str) -> str | None:
    """None: not one of ours."""
    try:
        found = base64.b64decode(sealed, validate=True)
        return found.removeprefix(SEAL).decode() if found.startswith(SEAL) else None
    except ValueError:
        return None


def messages(instructions: str | None, value: Any) -> list[Message]:
    found = [Message("system", (instructions,))] if instructions else []
    if isinstance(value, str):
        return [*found, Message("user", (value,))]
    turn = _Turn()
    for index, item in enumerate(objects(value, "input")):
        where = f"input[{index}]"
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "reasoning":
            if turn.parts or turn.calls:
                found += turn.end()
            turn.thoughts += _thought(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            turn.calls.append(_call(item, kind, where))
        elif kind == "message":
            role = item.get("role")
            if not isinstance(role, str) or role not in ROLES:
                known = ", ".join(ROLES)
                raise invalid(f"{where}.role", f"expected one of {known}, got {role!r:.40}")
            parts = texts(item.get("content"), f"{where}.content", TEXTS)
            if role == "assistant":
                turn.parts += parts
            else:
                found += [*turn.end(), Message(role, parts)]
        elif kind in ("function_call_output", "custom_tool_call_output"):
            parts = texts(item.get("output"), f"{where}.output", TEXTS)
            name = string(item, "call_id", where)
            found += [*turn.end(), Message("tool", parts, call_id=name)]
        elif kind == "item_reference" or not isinstance(kind, str):
            raise invalid(f"{where}.type", f"expected an item as it was sent, got {kind!r:.40}")
        else:
            tell("item left out", kind=kind[:40])
    return [*found, *turn.end()]


class _Turn:
    """What an assistant said since somebody else did."""

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.parts: list[str] = []
        self.calls: list[Call] = []

    def end(self) -> list[Message]:
        if not (self.thoughts or self.parts or self.calls):
            return []
        thought = "".join(self.thoughts) if self.thoughts else None
        message = Message("assistant", tuple(self.parts), thought, tuple(self.calls))
        self.thoughts, self.parts, self.calls = [], [], []
        return [message]


def _thought(item: Mapping[str, Any], where: str) -> list[str]:
    """Its text, else our own seal, else its summary."""
    if item.get("content"):
        return texts(item["content"], f"{where}.content", THOUGHTS)
    sealed = item.get("encrypted_content")
    thought = unseal(sealed) if isinstance(sealed, str) else None
    if thought is not None:
        return [thought]
    return texts(item.get("summary"), f"{where}.summary", THOUGHTS)


def _call(item: Mapping[str, Any], kind: str, where: str) -> Call:
    name = string(item, "name", where)
    if isinstance(item.get("namespace"), str):
        name = f"{item['namespace']}__{name}"
    arguments = item.get("arguments")
    if kind == "custom_tool_call":
        arguments = {"input": item.get("input")}
    return Call(name, arguments, string(item, "call_id", where, ""))
