"""Bare text by its schema: the table of types, and schemas that make no sense."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tr.serve.job import Tool
from tr.serve.schemas import DEPTH, check_tools, parameter, types
from tr.serve.values import dumps, typed

S, I, N, B = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
ROOT = {
    "$defs": {
        "count": {"type": "integer"},
        "far": {"$ref": "#/$defs/count"},
        "node": {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        },
        "self": {"$ref": "#/$defs/self"},
        "a/b~c": {"type": "boolean"},
    }
}
ANY = [S, I, B, {"type": "object"}]


@pytest.mark.parametrize(
    "schema, text, expected",
    [
        (S, "null", "null"),
        (S, " 5 ", " 5 "),
        (S, '{"a":1}', '{"a":1}'),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, " null", " null"),
        ({"type": "null"}, " null ", None),
        (I, "5", 5),
        (I, " 5 ", 5),
        (I, "5.0", 5),
        (I, "5.5", 5.5),
        (I, "1e2", 100),
        (I, "five", "five"),
        (I, "1_000", "1_000"),
        (I, "true", "true"),
        (I, "9" * 5000, "9" * 5000),
        (N, "5", 5),
        (N, "5.0", 5.0),
        (N, "NaN", "NaN"),
        (N, "-inf", "-inf"),
        (N, "1e999", "1e999"),
        (B, "TRUE", True),
        (B, "False", False),
        (B, "1", True),
        (B, "0", False),
        (B, "yes", "yes"),
        ({"type": ["boolean", "string"]}, "1", "1"),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "array"}, "['a', None, True, (1,)]", ["a", None, True, [1]]),
        ({"type": "array"}, "a, b", "a, b"),
        ({"type": "array"}, "[1e999]", "[1e999]"),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
        ({"type": "array"}, "[" * 500 + "]" * 500, "[" * 500 + "]" * 500),
        ({"type": "array"}, "{1, 2}", "{1, 2}"),
        ({"type": "object"}, '{"a": {"b": null}}', {"a": {"b": None}}),
        ({"type": "object"}, "{'a': b'x'}", "{'a': b'x'}"),
        ({"type": "object"}, "[1]", "[1]"),
        ({}, "true", True),
        ({}, "null", "null"),
        ({}, "word", "word"),
        ({}, '"word"', '"word"'),
        ({}, " [1] ", [1]),
        (True, "7", 7),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"type": ["integer", "string"]}, "7a", "7a"),
        ({"anyOf": [I, {"type": "null"}]}, "null", None),
        ({"oneOf": [S, {"type": "array", "items": I}]}, "[1]", [1]),
        ({"allOf": [{"type": ["string", "integer"]}, I]}, "5", 5),
        ({"anyOf": ANY, "type": "string"}, "5", "5"),
        ({"enum": ["5", 5]}, "5", "5"),
        ({"enum": ["a", 5, None, True]}, "5", 5),
        ({"enum": ["a", 5, None, True]}, "null", None),
        ({"enum": ["a", 1]}, "true", "true"),
        ({"enum": [1, True]}, "true", True),
        ({"enum": ["a", "b"]}, "7", "7"),
        ({"const": False}, "false", False),
        ({"$ref": "#/$defs/count"}, "5", 5),
        ({"$ref": "#/$defs/far"}, "5", 5),
        ({"$ref": "#/$defs/a~1b~0c"}, "true", True),
        ({"$ref": "#/$defs/self"}, "[5]", [5]),
        ({"$ref": "#/$defs/nowhere"}, "[5]", [5]),
        ({"$ref": "https://example.org/x"}, "[5]", [5]),
        (
            {"$ref": "#/$defs/node"},
            '{"n": "1", "children": [{"n": "2", "x": "3"}]}',
            {"n": 1, "children": [{"n": 2, "x": "3"}]},
        ),
        ({"type": "array", "items": S}, '["1", "null"]', ["1", "null"]),
        ({"type": "object", "additionalProperties": B}, '{"a": "true"}', {"a": True}),
    ],
)
def test_the_table(schema, text, expected):
    found = typed(text, schema, ROOT)
    assert found == expected and type(found) is type(expected)


def test_a_parameter_nobody_declared():
    assert parameter(Tool("f", {}), "x") == {"type": "string"}
    assert parameter(Tool("f", {"properties": {"a": I}}), "x") is True
    assert parameter(Tool("f", {"additionalProperties": I}), "x") == I
    behind = {"$ref": "#/$defs/in", "$defs": {"in": {"properties": {"a": I}}}}
    assert parameter(Tool("f", behind), "a") == I


def test_json_that_utf8_can_hold():
    assert dumps({"é": "\ud800文\n"}) == '{"é": "\\ud800文\\n"}'
    assert json.loads(dumps("\udfff")) == "\udfff"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "null", "#", "#/a/0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "anyOf", "allOf", "$ref", "enum", "items", "properties", "const", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(schema=JUNK, root=JUNK, text=st.sampled_from(["5", "[1]", '{"a": "5"}', "null", "x", ""]))
def test_no_schema_makes_reading_fail(schema, root, text):
    json.dumps(typed(text, schema, root))
    parameters = schema if isinstance(schema, dict) else {}
    parameter(Tool("f", parameters), "a")
    try:
        check_tools([Tool("f", parameters)])
    except ValueError as error:
        assert "tools[0].parameters" in str(error)


def test_schemas_that_branch_without_end_are_read_at_once():
    defs = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(30)}
    root = {"$defs": {**defs, "30": I}}
    assert types({"$ref": "#/$defs/0"}, root) == {"integer"}
    assert typed('{"a": {"b": 1}}', {"$ref": "#/$defs/0", "type": "object"}, root)


def nested(levels: int) -> dict:
    schema: dict = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


TREE = {"type": "object", "properties": {"a": {"$ref": "#"}}}


@pytest.mark.parametrize(
    "parameters, complaint",
    [
        ({"type": 5}, "tools[1].parameters.type: expected a name"),
        ({"properties": []}, "tools[1].parameters.properties: expected an object, got list"),
        ({"properties": {"a": 5}}, "parameters.properties.a: expected a schema"),
        ({"properties": {"a": {"anyOf": [None]}}}, "properties.a.anyOf[0]: expected a schema"),
        ({"properties": {"a": {"enum": "x"}}}, "properties.a.enum: expected a list, got str"),
        ({"properties": {"a>b": {}}}, "cannot spell the name 'a>b'"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}}, "'#/$defs/a' leads back to itself"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "leads back to itself",
        ),
        (nested(DEPTH + 1), "nested deeper than 64"),
        ({"properties": {str(n): {"items": {}} for n in range(10_001)}}, "more than 20000"),
    ],
)
def test_absurd_tools_are_refused_by_name(parameters, complaint):
    with pytest.raises(ValueError, match=r"tools\[1\]") as caught:
        check_tools([Tool("a", {}), Tool("f", parameters)])
    assert complaint in str(caught.value)


def test_sensible_tools_are_not():
    check_tools([Tool("a", TREE), Tool("b", nested(DEPTH)), Tool("c", {"properties": {"x": True}})])
    with pytest.raises(ValueError, match="given twice"):
        check_tools([Tool("a", {}), Tool("a", {})])
    for name in ("", "a>b", "a\nb"):
        with pytest.raises(ValueError, match=r"tools\[0\].name"):
            check_tools([Tool(name, {})])
