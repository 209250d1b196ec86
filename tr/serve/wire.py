"""JSON as it goes over the wire: UTF-8, no escapes, one compact line."""

import json
from typing import Any

ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: Any) -> bytes:
    """A lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    return ENCODE(value).encode("utf-8", "replace")


def data(value: Any) -> bytes:
    """One server-sent event without a name."""
    return b"data: " + dumps(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(value)


def comment(text: str) -> bytes:
    return b": " + text.encode() + b"\n\n"
