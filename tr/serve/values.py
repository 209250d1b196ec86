"""The text of a parameter as the JSON value that its schema means.

A tool call carries every value as bare text: `5` is a string where the schema says string and a
number where it says integer. What a schema does not allow stays the string that was written, so
that whoever runs the tool sees it.
"""

import ast
import json
import math
import re
from typing import Any

from tr.serve.schemas import ALL, DEPTH, ORDER, Schema, below, members, types

LITERAL, NESTED = 100_000, 200  # characters of a Python literal; levels of a value
SURROGATE = re.compile("[\ud800-\udfff]")
NOT = object()  # no value of the type in question


def dumps(value: Any) -> str:
    """JSON text that UTF-8 can hold."""
    text = json.dumps(value, ensure_ascii=False)
    return SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def typed(text: str, schema: Schema, root: Schema) -> Any:
    """`text` under `schema`, whose `$ref`s point into `root`. Never raises.

    Of several types that fit, the first in ORDER; where the schema says nothing, JSON objects,
    arrays, numbers and booleans. `null` is None only where null is allowed.
    """
    allowed, stripped = types(schema, root), text.strip()
    listed = members(schema, root)
    if text in listed:
        return text
    parsed = _json(stripped)
    for member in listed:
        if isinstance(member, bool) == isinstance(parsed, bool) and member == parsed:
            return member
    if allowed == ALL:
        plain = parsed is NOT or parsed is None or isinstance(parsed, str)
        return text if plain else _settled(parsed, schema, root, 0)
    for kind in ORDER:
        if kind in allowed:
            found = _as(kind, allowed, text, stripped, parsed)
            if found is not NOT:
                return _settled(found, schema, root, 0)
    return parsed if "integer" in allowed and _is_number(parsed) else text


def _as(kind: str, allowed: frozenset[str], text: str, stripped: str, parsed: Any) -> Any:
    """A value of type `kind`, one of those `allowed`; NOT where it is none."""
    or_string = "string" in allowed
    if kind == "string":
        return text
    if kind == "null":
        return None if (text if or_string else stripped) == "null" else NOT
    if kind == "boolean":
        word = stripped.lower()
        if word in ("true", "false"):
            return word == "true"
        return stripped == "1" if stripped in ("1", "0") and not or_string else NOT
    if kind == "integer":
        whole = _is_number(parsed) and "number" not in allowed and parsed == int(parsed)
        return int(parsed) if whole else NOT
    if kind == "number":
        return parsed if _is_number(parsed) else NOT
    wanted = list if kind == "array" else dict
    if not isinstance(parsed, list | dict):
        parsed = _literal(stripped)
    return parsed if isinstance(parsed, wanted) else NOT


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _settled(value: Any, schema: Schema, root: Schema, depth: int) -> Any:
    """Strings inside `value` typed as well, where their own schema allows no string."""
    if depth > DEPTH or not isinstance(value, list | dict):
        return value
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        own = below(schema, key, root)
        if isinstance(inner, str):
            if "string" not in types(own, root):
                value[key] = typed(inner, own, root)
        elif own is not True:
            value[key] = _settled(inner, own, root, depth + 1)
    return value


def _json(text: str) -> Any:
    """`text` parsed; NOT where it is no JSON of finite numbers, or absurdly nested."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return NOT
    return NOT if _is_deep(text, value) else value


def _is_deep(text: str, value: Any) -> bool:
    if text.count("[") + text.count("{") <= NESTED:
        return False
    level = [value]
    for _ in range(NESTED):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _literal(text: str) -> Any:
    """A Python list, tuple or dict of what JSON knows; NOT for anything else."""
    if text[:1] not in ("[", "{", "(") or len(text) > LITERAL:
        return NOT
    if sum(map(text.count, "[{(-~+")) > NESTED:  # the parser of Python has a stack
        return NOT
    try:
        return json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NOT
