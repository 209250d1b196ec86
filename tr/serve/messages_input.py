"""Anthropic's messages as neutral ones: text and tool results in the order in which they stand."""

from collections.abc import Mapping
from typing import Any

from tr.serve.conversation import Call, Message
from tr.serve.errors import ApiError, invalid
from tr.serve.parts import objects, string, texts, unknown_part

ROLES = ("user", "assistant", "system")
SKIPPED = ("redacted_thinking", "server_tool_use")  # of an assistant: nothing that can be read
TEXT = {"text": "text"}


def system(value: Any) -> list[Message]:
    """Each block is a message of its own."""
    return [Message("system", (text,)) for text in texts(value, "system", TEXT)]


def messages(value: Any) -> list[Message]:
    found = []
    for index, message in enumerate(objects(value, "messages")):
        where = f"messages[{index}]"
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in ROLES:
            raise invalid(f"{where}.role", f"expected user, assistant or system, got {role!r:.40}")
        if content is None:
            raise invalid(f"{where}.content", "expected a string or a list of blocks, got nothing")
        place = f"{where}.content"
        if isinstance(content, str):
            found.append(Message(role, (content,)))
        elif role == "assistant":
            found.append(_assistant(content, place))
        else:
            found += _turn(role, content, place)
    return found


def _blocks(content: Any, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(content, list):
        raise invalid(where, "expected a string or a list of blocks")
    found = []
    for index, block in enumerate(content):
        if not isinstance(block, Mapping):
            raise invalid(f"{where}[{index}]", f"expected an object, got {type(block).__name__}")
        found.append((f"{where}[{index}]", block))
    return found


def _turn(role: str, content: Any, where: str) -> list[Message]:
    """A user's blocks: runs of text and, between them, results; nothing where there is nothing."""
    found: list[Message] = []
    run: list[str] = []

    def flush() -> None:
        if run:
            found.append(Message(role, tuple(run)))
            run.clear()

    for place, block in _blocks(content, where):
        kind = block.get("type")
        if kind == "tool_result":
            flush()
            name = string(block, "tool_use_id", place)
            failed = bool(block.get("is_error"))
            parts = _result(block.get("content"), f"{place}.content")
            found.append(Message("tool", parts, call_id=name, is_error=failed))
        elif kind not in ("tool_addition", "tool_removal"):
            run.append(_text(block, place))
    flush()
    return found or [Message(role)]


def _assistant(content: Any, where: str) -> Message:
    parts, thoughts, calls = [], [], []
    for place, block in _blocks(content, where):
        kind = block.get("type")
        if kind == "text":
            parts.append(string(block, "text", place))
        elif kind == "thinking":
            thoughts.append(string(block, "thinking", place))
        elif kind == "tool_use":
            arguments = block.get("input")
            if arguments is not None and not isinstance(arguments, Mapping):
                raise invalid(f"{place}.input", "expected an object")
            call_id = string(block, "id", place, "")
            calls.append(Call(string(block, "name", place), arguments or {}, call_id))
        elif not isinstance(kind, str) or not (kind in SKIPPED or kind.endswith("_tool_result")):
            raise unknown_part(kind, place)
    return Message("assistant", parts, "".join(thoughts) if thoughts else None, calls)


def _text(block: Mapping[str, Any], where: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return string(block, "text", where)
    source = block.get("source")
    if kind == "search_result":
        return "\n".join(texts(block.get("content"), f"{where}.content", TEXT))
    if kind == "document" and isinstance(source, Mapping) and source.get("type") == "text":
        return string(source, "data", f"{where}.source")
    raise unknown_part("input_file" if kind == "document" else kind, where)


def _result(content: Any, where: str) -> list[str]:
    """What a tool gave. A block that cannot be read here leaves a word in its place: it stays in
    the history, and refusing it would end the conversation.
    """
    if content is None or isinstance(content, str):
        return [content or ""]
    found = []
    for place, block in _blocks(content, where):
        try:
            found.append(_text(block, place))
        except ApiError:
            found.append(f"[{str(block.get('type'))[:40]} not shown: this model reads text only]")
    return found
