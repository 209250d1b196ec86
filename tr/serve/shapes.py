"""Objects kept as clients sent them: free in validation, described in the OpenAPI document.

What they hold is checked where they are read, by fields that errors can name.
"""

from typing import Annotated, Any

from pydantic import WithJsonSchema

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _word(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def _content(*blocks: Schema) -> Schema:
    return {"anyOf": [TEXT, {"type": "array", "items": {"anyOf": list(blocks)}}]}


_PARAMETERS = _object([], type=_word("object"), properties={"type": "object"})
_FUNCTION = _object(["name"], name=TEXT, description=TEXT, parameters=_PARAMETERS)
_PART = _object(["type", "text"], type=_word("text"), text=TEXT)
_CALLED = _object(["name", "arguments"], name=TEXT, arguments=TEXT)
_CALL = _object(["function"], id=TEXT, type=_word("function"), function=_CALLED)
_RESULT = _object(
    ["type", "tool_use_id"], type=_word("tool_result"), tool_use_id=TEXT, content=_content(_PART)
)
_USE = _object(
    ["type", "id", "name", "input"],
    type=_word("tool_use"),
    id=TEXT,
    name=TEXT,
    input={"type": "object"},
)
_THOUGHT = _object(["type", "thinking"], type=_word("thinking"), thinking=TEXT, signature=TEXT)

CHAT_MESSAGE = _object(
    ["role"],
    role=_word("system", "developer", "user", "assistant", "tool"),
    content={"anyOf": [_content(_PART), {"type": "null"}]},
    reasoning_content=TEXT,
    tool_calls={"type": "array", "items": _CALL},
    tool_call_id=TEXT,
)
MESSAGE = _object(
    ["role", "content"],
    role=_word("user", "assistant", "system"),
    content=_content(_PART, _RESULT, _USE, _THOUGHT),
)
_ITEM_PART = _object(["type", "text"], type=_word("input_text", "output_text"), text=TEXT)
_ITEMS = (
    _object(
        ["role", "content"],
        type=_word("message"),
        role=_word("system", "developer", "user", "assistant"),
        content=_content(_ITEM_PART),
    ),
    _object(
        ["type", "call_id", "name", "arguments"],
        type=_word("function_call"),
        call_id=TEXT,
        name=TEXT,
        arguments=TEXT,
    ),
    _object(
        ["type", "call_id", "output"],
        type=_word("function_call_output"),
        call_id=TEXT,
        output=_content(_ITEM_PART),
    ),
)

ChatMessage = Annotated[dict[str, Any], WithJsonSchema(CHAT_MESSAGE)]
ChatTool = Annotated[
    dict[str, Any],
    WithJsonSchema(_object(["type", "function"], type=_word("function"), function=_FUNCTION)),
]
Message = Annotated[dict[str, Any], WithJsonSchema(MESSAGE)]
MessageTool = Annotated[
    dict[str, Any],
    WithJsonSchema(_object(["name"], name=TEXT, description=TEXT, input_schema=_PARAMETERS)),
]
Item = Annotated[dict[str, Any], WithJsonSchema({"anyOf": list(_ITEMS)})]
FlatTool = Annotated[
    dict[str, Any],
    WithJsonSchema(
        _object(["type", "name"], type=_word("function"), name=TEXT, parameters=_PARAMETERS)
    ),
]
Format = Annotated[
    dict[str, Any],
    WithJsonSchema(
        _object(
            ["type"],
            type=_word("text", "json_object", "json_schema"),
            json_schema=_object(["schema"], name=TEXT, schema=_PARAMETERS),
        )
    ),
]
