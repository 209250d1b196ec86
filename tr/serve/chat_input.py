"""Chat Completions' messages as neutral ones, in their order."""

from collections.abc import Mapping, Sequence
from typing import Any

from tr.serve.conversation import Call, Message
from tr.serve.errors import invalid
from tr.serve.parts import objects, string, texts

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
THOUGHTS = {"thinking": "thinking", "reasoning": "text"}  # parts of an assistant's content


def messages(value: Any) -> list[Message]:
    found = []
    for index, message in enumerate(objects(value, "messages")):
        where = f"messages[{index}]"
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise invalid(f"{where}.role", f"expected one of {', '.join(ROLES)}, got {role!r:.40}")
        content = message.get("content")
        if role == "assistant":
            found.append(_assistant(message, content, where))
        else:
            parts = texts(content, f"{where}.content", TEXTS)
            call_id = string(message, "tool_call_id", where, "") if role == "tool" else ""
            found.append(Message(role, parts, call_id=call_id))
    return found


def _assistant(message: Mapping[str, Any], content: Any, where: str) -> Message:
    reasoning = _reasoning(message, where)
    if isinstance(content, list):
        thoughts = [p for p in content if isinstance(p, Mapping) and _kind(p) in THOUGHTS]
        content = [part for part in content if part not in thoughts]
        if thoughts and reasoning is None:
            reasoning = "".join(texts(thoughts, f"{where}.content", THOUGHTS))
    parts = texts(content, f"{where}.content", TEXTS)
    calls = message.get("tool_calls")
    if calls is None and isinstance(message.get("function_call"), Mapping):
        calls = [{"function": message["function_call"]}]
    return Message("assistant", parts, reasoning, _calls(calls or [], f"{where}.tool_calls"))


def _kind(part: Mapping[str, Any]) -> str:
    return str(part.get("type"))


def _reasoning(message: Mapping[str, Any], where: str) -> str | None:
    """The thought of an earlier answer, under any of the names that clients send it back by."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        if message.get(name) is not None:
            return string(message, name, where)
    details = message.get("reasoning_details")
    if isinstance(details, list):
        told = [d.get("text") for d in details if isinstance(d, Mapping)]
        return "".join(text for text in told if isinstance(text, str)) or None
    return None


def _calls(calls: Any, where: str) -> Sequence[Call]:
    if not isinstance(calls, list):
        raise invalid(where, "expected a list")
    found = []
    for index, call in enumerate(calls):
        place = f"{where}[{index}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise invalid(f"{place}.function", "expected an object")
        name = string(function, "name", f"{place}.function")
        found.append(Call(name, function.get("arguments"), string(call, "id", place, "")))
    return found
