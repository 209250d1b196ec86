"""The parser on anything at all, and on whatever a template can write of a call."""

import json
import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.serve.reading import TOOLS, arguments, cut_up, events, told
from tr.assemble import EMBEDDED
from tr.checkpoint.tokenizer import load_tokenizer
from tr.serve.events import CallClosed, CallCut, CallOpened
from tr.serve.job import Tool
from tr.serve.tags import CALL, END_CALL, END_THINK, THINK
from tr.serve.values import typed

TOKENIZER = load_tokenizer(EMBEDDED)
SPELLED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<|im_end|>"]
TAGS = ["<function=", "<function=now>", "<function=write>", "</function>", "<parameter="]
TAGS += ["<parameter=path>", "<parameter=lines>", "<parameter=write>", "</parameter>"]
LINES = ["\n</parameter>\n", "\n</function>\n", "\n<parameter=path>\n", "\n<function=now>\n"]
BITS = ["\n", "\n\n", " ", "<", ">", "</", "a", "5", '"', "\\", "文", "🙂", "null", "{}"]
MARKED = st.lists(
    st.sampled_from([THINK, END_THINK, CALL, END_CALL, *SPELLED, *TAGS, *LINES, *BITS]), max_size=25
).map("".join)
STOPS = st.lists(st.sampled_from(["\n", "a5", "<", "</function>", "文", "a"]), max_size=2)
SIZES = st.lists(st.integers(1, 16), min_size=1, max_size=3)
OPTIONS = st.fixed_dictionaries(
    {
        "tools": st.sampled_from([TOOLS, []]),
        "thinking": st.booleans(),
        "parallel": st.booleans(),
        "stops": STOPS,
    }
)


@settings(max_examples=250)
@given(text=MARKED, sizes=SIZES, step=st.integers(1, 16), cut=st.booleans(), options=OPTIONS)
@example(
    text=f"{CALL}\n<function=write>\n<parameter=path>\na\n</parameter>\n</function>\n</parameter>",
    sizes=[1],
    step=1,
    cut=False,
    options={"tools": TOOLS, "thinking": False, "parallel": True, "stops": []},
)
def test_any_text_gives_the_same_events_in_any_split(text, sizes, step, cut, options):
    found = events(*cut_up(TOKENIZER, text, sizes), cut=cut, step=step, **options)
    assert found == events(*cut_up(TOKENIZER, text, [7]), cut=cut, step=10**9, **options)
    opened = [e.index for e in found[0] if isinstance(e, CallOpened)]
    ended = [e for e in found[0] if isinstance(e, CallClosed | CallCut)]
    assert opened == [e.index for e in ended] == list(range(len(opened)))
    for event in ended:
        written = arguments(found[0], event.index)
        if isinstance(event, CallClosed):
            assert written == event.arguments and isinstance(json.loads(written), dict)
        else:
            assert cut and not _is_json(written)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


VALUE_TEXT = st.lists(
    st.sampled_from([*SPELLED, *TAGS, *LINES, *BITS]) | st.text("ab \n\t<>", max_size=4), max_size=8
).map("".join)
# what no reader could tell from the end of a value; a value begins behind a line break
ENDS = re.compile(r"(?:^|\n)</parameter>\n(?:<parameter=[^>\n]+>|</function>\s*<function=)")
TEXT = VALUE_TEXT.filter(lambda text: not ENDS.search(text))
NUMBER = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LIST, OBJECT = st.lists(JSON, max_size=3), st.dictionaries(TEXT, JSON, max_size=3)
WORD = TEXT.filter(lambda text: typed(text, {}, {}) == text)
ENUM = ["a", "5", 7, None, True]


def one_of(*schemas: dict) -> dict:
    return {"anyOf": list(schemas)}


# what a schema may say of a parameter, and the values that its text tells apart
KINDS: list[tuple[dict[str, Any], st.SearchStrategy]] = [
    ({"type": "string"}, TEXT),
    ({"allOf": [{"$ref": "#/$defs/text"}], "description": "a </parameter>"}, TEXT),
    ({"type": ["string", "null"]}, st.none() | TEXT.filter(lambda text: text != "null")),
    ({"type": "integer"}, st.integers(-(10**20), 10**20)),
    ({"type": "number"}, NUMBER),
    ({"$ref": "#/$defs/flag"}, st.booleans()),
    ({"type": "array", "items": {}}, LIST),
    ({"type": "object"}, OBJECT),
    (one_of({"type": "integer"}, {"type": "array"}, {"type": "null"}), st.integers() | LIST),
    ({"enum": ENUM}, st.sampled_from(ENUM)),
    ({"const": {"a": [1]}}, st.just({"a": [1]})),
    ({}, WORD | st.booleans() | NUMBER | LIST | OBJECT),
]
DEFS = {"text": {"type": "string"}, "flag": {"type": "boolean"}}
KEYS = st.text("abc_-.é ", min_size=1, max_size=5)


@st.composite
def spoken(draw) -> tuple[Tool, dict[str, Any]]:
    kinds = draw(st.dictionaries(KEYS, st.sampled_from(KINDS), max_size=4))
    schema = {"type": "object", "properties": {k: s for k, (s, _) in kinds.items()}, "$defs": DEFS}
    return Tool("f", schema), {key: draw(values) for key, (_, values) in kinds.items()}


@settings(max_examples=80)
@given(calls=st.lists(spoken(), min_size=1, max_size=3), text=st.sampled_from(["", "Well: <b>"]))
def test_what_the_template_writes_is_read_back(calls, text):
    tools = [Tool(f"f{n}", tool.parameters) for n, (tool, _) in enumerate(calls)]
    told_calls = [
        {"function": {"name": tool.name, "arguments": values}}
        for tool, (_, values) in zip(tools, calls, strict=True)
    ]
    user = {"role": "user", "content": "x"}
    answer = {"role": "assistant", "content": text, "reasoning_content": "<think> hm"}
    prompt = TOKENIZER.chat([user])
    ids = TOKENIZER.chat([user, {**answer, "tool_calls": told_calls}], generate=False)
    assert ids[: len(prompt)] == prompt
    end = ids.index(TOKENIZER.control["<|im_end|>"], len(prompt))
    found = events(TOKENIZER, ids[len(prompt) : end + 1], tools=tools, thinking=True)
    thought, *rest = told(found[0])
    assert thought == ("think", "<think> hm")
    assert rest[: bool(text)] == [("text", text)][: bool(text)]
    read = [(name, json.loads(written)) for name, written in rest[bool(text) :]]
    assert read == [(t.name, v) for t, (_, v) in zip(tools, calls, strict=True)]
    flat = json.dumps([values for _, values in read])
    assert flat == json.dumps([values for _, values in calls])  # True is not 1
