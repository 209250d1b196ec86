"""What clients send, made into messages that chat templates of this family render without loss.

A template raises on much that is legal in the protocols (late system messages, JSON text as
arguments, no user turn), and every change of an early byte costs a whole prompt. So each rule gives
the same text for the same message, whatever follows it, and nothing moves to another place.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tr.serve.conversation import Call, Conversation, Message

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
NOT_RENDERED = ("cache_control",)  # clients move it from turn to turn
THOUGHT = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


class PromptError(ValueError):
    """What cannot become a prompt: `field` of the request, and why."""

    def __init__(self, field: str, cause: str) -> None:
        super().__init__(f"{field}: {cause}")
        self.field = field


@dataclass(frozen=True)
class Rules:
    """Fixed texts. They are part of prompts: changing one forgets every conversation.

    `billing`: system blocks that begin so are left out. `late_system`, `orphan`: what a system
    message behind the first ones, and a result without a call, become as user text. `failed`
    stands before the result of a failed call. `no_user`: a user turn where there is none.
    """

    billing: str = "x-anthropic-billing-header"
    late_system: str = "<system>\n{}\n</system>"
    orphan: str = "Tool result:\n{}"
    failed: str = "Error: {}"
    no_user: str = "(continue)"


RULES = Rules()


def normalise(conversation: Conversation, rules: Rules) -> Conversation:
    """Roles system (first, at most once), user, assistant, tool; all arguments are objects.

    Raises PromptError, naming the message, for what has no meaning.
    """
    if not conversation.messages:
        raise PromptError("messages", "expected at least one, got none")
    schemas = _schemas(conversation.tools)
    leading, rest, calling = [], [], False
    for index, message in enumerate(conversation.messages):
        message = _plain(message, f"messages[{index}]", rules)
        if message is None:
            continue
        if message.role == "system":
            if not rest:
                leading.append(message.text)
                continue
            message = _user(rules.late_system.format(message.text))
        elif message.role == "assistant":
            message, calling = _assistant(message, schemas), bool(message.calls)
        elif message.role == "tool":
            text = rules.failed.format(message.text) if message.is_error else message.text
            message = replace(message, parts=(text,), is_error=False)
            if not calling:
                message = _user(rules.orphan.format(text))
        rest.append(message)
    rest = _in_call_order(rest)
    rest = _answered(rest)
    if rest and _is_empty(rest[-1]):
        rest = rest[:-1]  # nothing of an answer to go on with
    if not any(m.role == "user" for m in rest):
        rest = [_user(rules.no_user), *rest]
    system = [Message("system", ("\n\n".join(leading),))] if leading else []
    return replace(
        conversation, messages=[*system, *rest], tools=[_tool(t) for t in conversation.tools]
    )


def _plain(message: Message, where: str, rules: Rules) -> Message | None:
    """The message with a role that templates know and whole characters; None: not for the model."""
    if message.role not in ROLES:
        known = ", ".join(ROLES)
        raise PromptError(f"{where}.role", f"expected one of {known}, got {message.role!r:.40}")
    role, parts = ROLES[message.role], message.parts
    if role == "system":
        parts = [part for part in parts if not part.startswith(rules.billing)]
        if not "".join(parts).strip():
            return None
    reasoning = message.reasoning and _whole(message.reasoning)
    return replace(message, role=role, parts=tuple(map(_whole, parts)), reasoning=reasoning)


def _answered(messages: Sequence[Message]) -> list[Message]:
    """Without the empty user turns that nothing answers; the last one may still be."""
    following = [*(m.role for m in messages[1:]), "assistant"]
    pairs = zip(messages, following, strict=True) if messages else ()
    return [m for m, n in pairs if m.role != "user" or m.text.strip() or n == "assistant"]


def _user(text: str) -> Message:
    return Message("user", (text,))


def _is_empty(message: Message) -> bool:
    written = message.text.strip() or (message.reasoning or "").strip() or message.calls
    return message.role == "assistant" and not written


def _assistant(message: Message, schemas: Mapping[str, Mapping[str, Any]]) -> Message:
    text, reasoning = message.text, message.reasoning
    if reasoning is None and (thought := THOUGHT.match(text)):
        text, reasoning = text[thought.end() :], thought[1]
    calls = [replace(c, arguments=_arguments(c, schemas.get(c.name, {}))) for c in message.calls]
    return replace(message, parts=(text,), reasoning=reasoning, calls=tuple(calls))


def _arguments(call: Call, properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object. A list of as many values as the tool has properties is in their order."""
    value = call.arguments
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            value = call.arguments
    value = _whole(value)
    if isinstance(value, Mapping):
        return dict(value)
    if value is None:
        return {}
    if isinstance(value, list) and value and len(value) == len(properties):
        return dict(zip(properties, value, strict=True))
    return {"arguments": value}


def _in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Results in the order of their calls, since a template tells no ids.

    They change places among themselves only, up to the next turn; unknown ids stay where they are.
    """
    found = list(messages)
    order: dict[str, int] = {}
    places: list[int] = []

    def settle() -> None:
        results = sorted((found[i] for i in places), key=lambda m: order[m.call_id])
        for i, result in zip(places, results, strict=True):
            found[i] = result
        places.clear()

    for index, message in enumerate(messages):
        if message.role == "assistant":
            settle()
            order = {call.id: n for n, call in enumerate(message.calls) if call.id}
        elif message.role == "tool" and message.call_id in order:
            places.append(index)
    settle()
    return found


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The properties of each tool by its name."""
    found = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("parameters"), Mapping):
            properties = function["parameters"].get("properties")
            found[function.get("name")] = properties if isinstance(properties, Mapping) else {}
    return found


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: _whole(value) for key, value in tool.items() if key not in NOT_RENDERED}
    if isinstance(function := kept.get("function"), Mapping):
        kept["function"] = {k: v for k, v in function.items() if k not in NOT_RENDERED}
    return kept


def _whole(value: Any) -> Any:
    """Halves of surrogate pairs joined where they meet, U+FFFD where one is missing."""
    if isinstance(value, str):
        if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(inner) for inner in value]
    return value
