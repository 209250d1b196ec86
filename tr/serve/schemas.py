"""What a tool's JSON schema allows, as far as reading bare text needs it, and which are refused.

Anything may stand in a schema that a client sends: what has no meaning here allows everything.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from tr.serve.job import Tool

Schema = Any  # a mapping, True or False; whatever a client sent otherwise says nothing
ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
ALL = frozenset(ORDER)
TEXT = frozenset(("string",))
DEPTH, NODES = 64, 20_000  # of a tool's schema
KEY = 256  # characters of a parameter's name
INSIDE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")


def parameter(tool: Tool, key: str) -> Schema:
    """The schema of a parameter. A tool that declares none takes strings."""
    declared = properties(tool)
    if key in declared:
        return declared[key]
    found = below(tool.parameters, key, tool.parameters)
    return {"type": "string"} if found is True and not declared else found


def properties(tool: Tool) -> Mapping[str, Schema]:
    schema = _target(tool.parameters, tool.parameters)
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def types(schema: Schema, root: Schema) -> frozenset[str]:
    """The JSON types that `schema` allows, integer being a number; all where it says nothing."""
    return _types(schema, root, {}, 0) or ALL


def _types(
    schema: Schema, root: Schema, known: dict[str, frozenset[str]], depth: int
) -> frozenset[str]:
    """`known`: what references turned out to allow; all while one is being followed."""
    if not isinstance(schema, Mapping) or depth > DEPTH:
        return ALL
    found = ALL
    if isinstance(ref := schema.get("$ref"), str):
        if ref not in known:
            known[ref] = ALL
            known[ref] = _types(_resolve(ref, root), root, known, depth + 1)
        found &= known[ref]
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list):
        named = {kind for kind in kinds if isinstance(kind, str)} & ALL
        found &= (named | {"integer"} if "number" in named else named) or ALL
    if listed := _members(schema):
        found &= frozenset(map(_type_of, listed))
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list) and branches:
            found &= frozenset().union(*(_types(b, root, known, depth + 1) for b in branches))
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            found &= _types(part, root, known, depth + 1)
    return found


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if math.isfinite(value) and value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def members(schema: Schema, root: Schema) -> list[Any]:
    """The values of an enumeration or constant, behind references as well; else none."""
    schema = _target(schema, root)
    return _members(schema) if isinstance(schema, Mapping) else []


def _members(schema: Mapping[str, Any]) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else []


def below(schema: Schema, key: str | int, root: Schema) -> Schema:
    """The schema of a member or an item, as far as one can be told; True where it cannot."""
    return _below(schema, key, root, set())


def _below(schema: Schema, key: str | int, root: Schema, seen: set[int]) -> Schema:
    if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) > DEPTH:
        return True
    seen.add(id(schema))
    named = schema.get("properties")
    if isinstance(key, str) and isinstance(named, Mapping) and key in named:
        return named[key]
    found = schema.get("additionalProperties" if isinstance(key, str) else "items")
    if isinstance(found, Mapping):
        return found
    parts = [_resolve(schema["$ref"], root)] if isinstance(schema.get("$ref"), str) else []
    for name in ("allOf", "anyOf", "oneOf"):
        listed = schema.get(name)
        parts += listed if isinstance(listed, list) else []
    told = [inner for part in parts if (inner := _below(part, key, root, seen)) is not True]
    return told[0] if len(told) == 1 else True


def _target(schema: Schema, root: Schema) -> Schema:
    """What a schema that is a reference refers to in the end."""
    for _ in range(DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(ref := schema.get("$ref"), str):
            break
        schema = _resolve(ref, root)
    return schema


def _resolve(ref: str, root: Schema) -> Schema:
    """What a reference within the document points at; True where that is nothing."""
    if not ref.startswith("#"):
        return True
    found = root
    for step in unquote(ref[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step[:9]) < len(found):
            found = found[int(step[:9])]
        else:
            return True
    return found


def check_tools(tools: Sequence[Tool]) -> None:
    """Raises ValueError, naming tool and place, for what nothing sensible can follow from."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.name in names:
            raise ValueError(f"{where}.name: {tool.name!r:.80} is given twice; use other names")
        names.add(tool.name)
        if not tool.name or set(tool.name) & set("<>\n"):
            raise ValueError(
                f"{where}.name: expected a name without line breaks, < and >, got {tool.name!r:.80}"
            )
        _check_schema(tool.parameters, f"{where}.parameters")
        for key in properties(tool):
            if not key or len(key) > KEY or set(key) & set(">\n"):
                raise ValueError(
                    f"{where}.parameters.properties: a call cannot spell the name {key!r:.80}; "
                    f"use 1 to {KEY} characters without line breaks and >"
                )


def _check_schema(root: Schema, where: str) -> None:
    todo, count = [(root, where, 0)], 0
    while todo:
        schema, place, depth = todo.pop()
        count += 1
        if count > NODES:
            raise ValueError(f"{where}: more than {NODES} schemas inside; make it smaller")
        if depth > DEPTH:
            raise ValueError(f"{where}: nested deeper than {DEPTH}; make it flatter")
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, Mapping):
            raise ValueError(f"{place}: expected a schema, an object, got {_kind(schema)}")
        _check_keywords(schema, place)
        _check_references(schema, root, place)
        todo += [(inner, at, depth + 1) for inner, at in _inside(schema, place)]


def _check_keywords(schema: Mapping[str, Any], place: str) -> None:
    kinds = schema.get("type", [])
    if not isinstance(kinds, str) and not (
        isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
    ):
        raise ValueError(f"{place}.type: expected a name or a list of names, got {_kind(kinds)}")
    wanted: dict[str, type] = {"$ref": str, "enum": list}
    wanted |= dict.fromkeys(NAMED, Mapping) | dict.fromkeys(LISTED, list)
    for key, kind in wanted.items():
        if key in schema and not isinstance(schema[key], kind):
            word = {str: "text", list: "a list", Mapping: "an object"}[kind]
            raise ValueError(f"{place}.{key}: expected {word}, got {_kind(schema[key])}")


def _check_references(schema: Mapping[str, Any], root: Schema, place: str) -> None:
    """References that lead back to themselves without going any deeper mean nothing."""
    seen: list[str] = []
    found: Schema = schema
    while isinstance(found, Mapping) and isinstance(ref := found.get("$ref"), str):
        if ref in seen or len(seen) > DEPTH:
            raise ValueError(f"{place}.$ref: {ref!r:.80} leads back to itself")
        seen.append(ref)
        found = _resolve(ref, root)


def _inside(schema: Mapping[str, Any], place: str) -> Iterator[tuple[Schema, str]]:
    for key in INSIDE:
        if isinstance(schema.get(key), Mapping):
            yield schema[key], f"{place}.{key}"
    for key in NAMED:
        for name, inner in schema.get(key, {}).items():
            yield inner, f"{place}.{key}.{name}"
    for key in LISTED:
        for n, inner in enumerate(schema.get(key, [])):
            yield inner, f"{place}.{key}[{n}]"


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
