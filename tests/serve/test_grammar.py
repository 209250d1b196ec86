"""Matchers over the embedded tokenizer: what they let through, and what is refused by name."""

import pytest

from tr.assemble import EMBEDDED
from tr.checkpoint.tokenizer import load_tokenizer
from tr.serve.grammar import Grammars, Matcher
from tr.serve.job import Constraint, Tool

TOKENIZER = load_tokenizer(EMBEDDED)
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.eos)
TITLE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "n": {"type": "integer", "minimum": 1}},
    "required": ["title"],
    "additionalProperties": False,
}
TOOLS = (
    Tool(
        "Bash",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "mode": {"enum": ["fast", "safe"]},
                "count": {"$ref": "#/$defs/count"},
                "any": {"propertyNames": {"pattern": "a"}},
            },
            "required": ["command"],
            "$defs": {"count": {"type": "integer"}},
        },
    ),
    Tool("now", {"type": "object"}),
)


def read(matcher: Matcher, text: str) -> str:
    """What of `text` the matcher takes; its mask and `allows` agree at every token."""
    taken = []
    for token in TOKENIZER.encode(text, special=True):
        bit = int(matcher.mask()[token // 32]) >> token % 32 & 1
        assert bool(bit) == matcher.allows(token)
        if not bit:
            break
        matcher.accept(token)
        taken.append(token)
    return TOKENIZER.decode(taken)


def call(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        (TITLE, ['{"title": "héllo", "n": 3}', '{ "title":"\\n" }'], ['{"n"', '{"title": 1']),
        ({"type": "array", "items": {"enum": ["a", 2]}}, ['["a", 2]', "[]"], ['["b"']),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, ["null", "true"], ["nil"]),
    ],
)
def test_json_follows_its_schema(schema, good, bad):
    constraint = Constraint("json_schema", schema)
    for text in good:
        matcher = GRAMMARS.matcher(constraint)
        assert read(matcher, text) == text and matcher.done
    for text in bad:
        matcher = GRAMMARS.matcher(constraint)
        assert read(matcher, text) != text and not matcher.done
    matcher = GRAMMARS.matcher(Constraint("json_object"))
    assert read(matcher, '{"x": [1, {"y": null}]}') and matcher.done


def test_white_space_comes_to_an_end():
    assert read(GRAMMARS.matcher(Constraint("json_object")), "{\n" + " " * 99) != "{\n" + " " * 99


@pytest.mark.parametrize(
    "text",
    [
        call("now"),
        call("Bash", ("command", "  ls </function>\n<tool_call\n\n")),
        call("Bash", ("command", "x"), ("mode", "safe"), ("count", "-5"), ("any", "what ever")),
        call("now") + "\n" + call("Bash", ("command", "")),
    ],
)
def test_calls_that_the_tools_allow(text):
    matcher = GRAMMARS.matcher(Constraint("tools", required=True), TOOLS)
    assert read(matcher, text) == text
    assert matcher.allows(TOKENIZER.eos[0]) and not matcher.done


@pytest.mark.parametrize(
    "text",
    [
        "I would rather",
        call("other"),
        call("Bash"),
        call("Bash", ("count", "5")),
        call("Bash", ("command", "x"), ("count", "five")),
        call("Bash", ("command", "x"), ("mode", "slow")),
        call("now", ("x", "y")),
    ],
)
def test_calls_that_they_refuse(text):
    matcher = GRAMMARS.matcher(Constraint("tools", required=True), TOOLS)
    assert read(matcher, text) != text and not matcher.allows(TOKENIZER.eos[0])


def test_one_call_where_more_are_not_wanted():
    for constraint, parallel in (
        (Constraint("tools", forced="now"), True),
        (Constraint("tools", required=True), False),
    ):
        matcher = GRAMMARS.matcher(constraint, TOOLS, parallel)
        assert read(matcher, call("now")) and matcher.done
    matcher = GRAMMARS.matcher(Constraint("tools", forced="now"), TOOLS)
    assert read(matcher, call("Bash", ("command", "x"))).endswith("<function=")


def test_a_marker_is_its_id_and_not_its_characters():
    matcher = GRAMMARS.matcher(Constraint("tools", required=True), TOOLS)
    assert not matcher.allows(TOKENIZER.encode("<tool_call>")[0])
    assert matcher.allows(TOKENIZER.control["<tool_call>"])


def test_what_was_accepted_can_be_undone():
    matcher = GRAMMARS.matcher(Constraint("json_schema", TITLE))
    read(matcher, '{"title"')
    before = matcher.mask()
    more = TOKENIZER.encode(': "ab')
    for token in more:
        matcher.accept(token)
    matcher.rollback(len(more))
    assert matcher.mask().equal(before)
    assert read(matcher, ': "x"}') == ': "x"}'
    with pytest.raises(ValueError, match="constraint: token"):
        matcher.accept(TOKENIZER.encode("x")[0])


@pytest.mark.parametrize(
    "constraint, message",
    [
        (Constraint("json_schema", {"not": {"type": "string"}}), 'Unimplemented keys: \\["not"\\]'),
        (Constraint("json_schema", {"type": "fish"}), "Invalid type: fish"),
        (Constraint("json_schema", {"$ref": "#/$defs/none"}), "constraint: "),
        (Constraint("json_schema", {"$ref": "http://example.org/x"}), "constraint: "),
        (Constraint("json_schema", {"$ref": "#"}), "constraint: "),
        (Constraint("json_schema", {"enum": []}), "constraint: "),
        (Constraint("json_schema", {"pattern": "((", "type": "string"}), "constraint: "),
        (Constraint("json_schema", None), "constraint.schema: expected a JSON schema"),
        (Constraint("json_schema", {"const": {1, 2}}), "constraint.schema: it is no JSON"),
        (Constraint("regex"), "constraint.kind: expected json_object"),
        (Constraint("tools", forced="gone"), "there is no tool gone"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(constraint, message):
    with pytest.raises(ValueError, match=message):
        GRAMMARS.matcher(constraint, TOOLS)


def test_a_deep_schema_is_refused_and_nothing_else():
    deep: dict = {}
    for _ in range(3000):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    with pytest.raises(ValueError, match="constraint"):
        GRAMMARS.matcher(Constraint("json_schema", deep))
    assert GRAMMARS.matcher(Constraint("json_schema", TITLE))
