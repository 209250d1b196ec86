"""Structured output: what each protocol calls a format, as a constraint."""

from collections.abc import Mapping
from typing import Any

from tr.serve.errors import invalid
from tr.serve.job import Constraint


def response_format(value: Any, param: str) -> Constraint | None:
    """Chat: {type, json_schema: {schema}}; Responses and Anthropic: {type, schema}."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise invalid(param, "expected an object")
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json_object")
    if kind != "json_schema":
        known = "text, json_object or json_schema"
        raise invalid(f"{param}.type", f"expected {known}, got {kind!r:.40}")
    inner = value.get("json_schema", value)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping):
        where = "json_schema.schema" if "json_schema" in value else "schema"
        raise invalid(f"{param}.{where}", "expected a JSON schema, an object")
    return Constraint("json_schema", schema)
