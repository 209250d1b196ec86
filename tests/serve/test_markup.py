"""The parser's corpus: each answer once, in every split, and cut at every token."""

import json

import pytest

from tests.serve.reading import TOOLS, arguments, cut_up, events, ids_of, reader, told
from tr.serve.events import CallClosed, CallCut, CallOpened, Text, merged
from tr.serve.tags import CALL, END_CALL, END_THINK, SPELLED, THINK

NOW = f"{CALL}\n<function=now>\n</function>\n{END_CALL}"


def call(name: str, end: str = f"\n{END_CALL}", **values: str) -> str:
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"{CALL}\n<function={name}>\n{parameters}</function>{end}"


def written(**values) -> tuple[str, str]:
    return "write", json.dumps(values, ensure_ascii=False)


SOURCE = 'a = "</parameter>"\n</parameter>\nif x:\n\t</function>\n<parameter=k>\n</function>\n'
DOC = "Write:\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
MANUAL = "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nSo it goes."

# marked text -> what is told of it; thinking where the text has a thought's end
CASES = {
    "plain": ("Hello.\n", [("text", "Hello.\n")]),
    "thought": (f"\nhm\n\n{END_THINK}\n\n  Hi\n", [("think", "hm"), ("text", "  Hi\n")]),
    "empty thought": (f"\n{END_THINK}\n\nHi", [("text", "Hi")]),
    "second end of thought": (
        f"hm{END_THINK}\n\na{END_THINK}b",
        [("think", "hm"), ("text", "ab")],
    ),
    "thought reopened": (
        f"{THINK}\nhm{THINK}{END_THINK}x",
        [("think", "hm<think>"), ("text", "x")],
    ),
    "text, then calls": (
        f"Well:\n\n{call('write', path='a', lines='5')}\n{NOW}",
        [("text", "Well:"), written(path="a", lines=5), ("now", "{}")],
    ),
    "call behind a thought": (
        f"hm\n{END_THINK}\n\n{NOW}\n",
        [("think", "hm"), ("now", "{}")],
    ),
    "text between calls": (
        f"a\n{NOW}\n\nb\n\n{NOW}\nc",
        [("text", "a"), ("now", "{}"), ("text", "b"), ("now", "{}"), ("text", "c")],
    ),
    "space between calls": (f"{NOW} \n {NOW}  ", [("now", "{}"), ("now", "{}")]),
    "markers spelled": (DOC.replace("now", "later"), [("text", DOC.replace("now", "later"))]),
    "lone beginnings": ("a <\n<tool\n<function=no\n<", [("text", "a <\n<tool\n<function=no\n<")]),
    "undeclared": (
        f"{CALL}\n<function=rm>\n</function>\n{END_CALL}",
        [("text", "<tool_call>\n<function=rm>\n</function>\n</tool_call>")],
    ),
    "no function tag": (
        f"{CALL}\n{{}}\n{END_CALL}",
        [("text", "<tool_call>\n{}\n</tool_call>")],
    ),
    "text in the function": (
        f"{CALL}\n<function=now>\nls\n</function>\n{END_CALL}",
        [("text", "<tool_call>\n<function=now>\nls\n</function>\n</tool_call>")],
    ),
    "no line breaks": (
        f"{CALL}<function=write><parameter=path>a</parameter><parameter=lines>5</parameter>"
        f"</function>{END_CALL}",
        [written(path="a", lines=5)],
    ),
    "bare function": (
        f"Sure\n{call('write', path='a')[2:]}\nDone",
        [("text", "Sure"), written(path="a"), ("text", "Done")],
    ),
    "bare function inside a line": (
        "x <function=now></function>",
        [("text", "x <function=now></function>")],
    ),
    "two functions in a call": (
        f"{CALL}\n<function=now>\n</function>\n{call('write', path='a')[2:]}",
        [("now", "{}"), written(path="a")],
    ),
    "two functions with values": (
        f"{call('write', end='', path='a')}\n{call('write', path='b')[2:]}",
        [written(path="a"), written(path="b")],
    ),
    "slip: parameter for function": (
        f"{CALL}\n<parameter=write>\n<parameter=path>\na\n</parameter>\n</function>\n{END_CALL}",
        [written(path="a")],
    ),
    "no slip: a value follows": (
        f"{CALL}\n<parameter=write>\na\n</parameter>\n</function>\n{END_CALL}",
        [("text", "<tool_call>\n<parameter=write>\na\n</parameter>\n</function>\n</tool_call>")],
    ),
    "no call end": (call("write", end="", path="a"), [written(path="a")]),
    "no function end": (
        f"{CALL}\n<function=write>\n<parameter=path>\na\n</parameter>\n{END_CALL}\n{NOW}",
        [written(path="a"), ("now", "{}")],
    ),
    "no ends at all": (
        f"{CALL}\n<function=write>\n<parameter=path>\na\n\n",
        [written(path="a\n")],
    ),
    "nothing of the value": (f"{CALL}\n<function=write>\n<parameter=path>\n", [written(path="")]),
    "no parameter end": (
        f"{CALL}\n<function=write>\n<parameter=path>\na\n</function>\n{END_CALL}",
        [written(path="a")],
    ),
    "no parameter end, a call follows": (
        f"{CALL}\n<function=write>\n<parameter=path>\na\n\n</function>\n{END_CALL}\n{NOW}",
        [written(path="a\n"), ("now", "{}")],
    ),
    "next call opens early": (
        f"{CALL}\n<function=write>\n<parameter=path>\na\n</parameter>\n{NOW}",
        [written(path="a"), ("now", "{}")],
    ),
    "function without anything": (f"{CALL}\n<function=now>\n", [("now", "{}")]),
    "end in the value's line": (
        f"{CALL}\n<function=write>\n<parameter=path>\na</parameter>\n{END_CALL}",
        [written(path="a")],
    ),
    "last parameter end counts": (
        f"{CALL}\n<function=write>\n<parameter=path>\na</parameter>b</parameter>\n</function>\nBye",
        [written(path="a</parameter>b"), ("text", "Bye")],
    ),
    "text behind a call without its end": (
        f"{call('write', end='', path='a', content='b')}\nI called it.",
        [written(path="a", content="b"), ("text", "I called it.")],
    ),
    "text before the call's own end": (
        f"{call('write', end='', path='a')}\nI called it.\n{END_CALL}\n{NOW}",
        [written(path="a"), ("text", "I called it."), ("now", "{}")],
    ),
    "source with tags": (
        call("write", content=SOURCE, path="b.py"),
        [written(content=SOURCE, path="b.py")],
    ),
    "manual": (call("write", content=MANUAL), [written(content=MANUAL)]),
    "marker token in a value": (
        call("write", content=f"a{CALL}b{END_THINK}\n{END_CALL}c"),
        [written(content="a<tool_call>b</think>\n</tool_call>c")],
    ),
    "line breaks": (
        call("write", content="\n\n  a\n\n", path=""),
        [written(content="\n\n  a\n\n", path="")],
    ),
    "empty value in one line break": (
        f"{CALL}\n<function=write>\n<parameter=path>\n</parameter>\n</function>\n{END_CALL}",
        [written(path="")],
    ),
    "what looks like JSON": (
        call("write", content="null", path=" 5 ", lines=" 5 "),
        [written(content="null", path=" 5 ", lines=5)],
    ),
    "not of its type": (call("write", lines="many"), [written(lines="many")]),
    "unknown parameter": (call("write", mode="7"), [written(mode=7)]),
    "given twice": (
        call("write", path="a", lines="1")[: -len(f"</function>\n{END_CALL}")]
        + f"<parameter=path>\nb\n</parameter>\n</function>\n{END_CALL}",
        [("write", '{"path": "a", "lines": 1, "path": "b"}')],
    ),
    "object": (
        call("write", options='{"a": [1, "</parameter>\\n"]}'),
        [written(options={"a": [1, "</parameter>\n"]})],
    ),
    "rehearsal": (
        f"try {NOW} no{END_THINK}\n\nok",
        [("think", f"try {NOW.translate(SPELLED)} no"), ("text", "ok")],
    ),
    "quotes and control characters": (
        call("write", content='"\\\t\x01é文🙂\u2028'),
        [written(content='"\\\t\x01é文🙂\u2028')],
    ),
}
NAMES = list(CASES)


def options(text: str) -> dict:
    return {
        "tools": TOOLS,
        "thinking": END_THINK in text.split(CALL)[0] or "no" + END_THINK in text,
    }


@pytest.mark.parametrize("name", NAMES)
def test_what_is_told(tokenizer, name):
    text, expected = CASES[name]
    found, _ = events(tokenizer, ids_of(tokenizer, text), **options(text))
    assert told(found) == expected
    assert all(arguments(found, e.index) == e.arguments for e in found if isinstance(e, CallClosed))


@pytest.mark.parametrize("name", NAMES)
def test_no_split_changes_an_event(tokenizer, name):
    text, _ = CASES[name]
    whole, _ = events(tokenizer, ids_of(tokenizer, text), step=10**9, **options(text))
    for n in range(1, 17):
        assert events(tokenizer, ids_of(tokenizer, text), step=n, **options(text))[0] == whole
        other, ids = cut_up(tokenizer, text, [n])
        assert events(other, ids, **options(text))[0] == whole


@pytest.mark.parametrize("name", NAMES)
def test_cut_anywhere_nothing_half_is_told_as_a_call(tokenizer, name):
    """And what was told before the cut is the beginning of what is told without it."""
    text, expected = CASES[name]
    other, ids = cut_up(tokenizer, text, [3])
    whole, _ = events(other, ids, **options(text))
    calls = [e for e in whole if isinstance(e, CallClosed)]
    for n in range(len(ids)):
        given = reader(other, **options(text))
        for token in ids[:n]:
            assert not given.push(token)
        before = given.take()
        assert _flat(whole)[: len(_flat(before))] == _flat(before)
        found = merged([*before, *given.finish(cut=True)])
        closed = [e for e in found if isinstance(e, CallClosed)]
        assert closed == calls[: len(closed)]
        open_calls = [e.index for e in found if isinstance(e, CallOpened)][len(closed) :]
        assert open_calls == [e.index for e in found if isinstance(e, CallCut)]
        for index in open_calls:
            with pytest.raises(ValueError):
                json.loads(arguments(found, index))


def _flat(found) -> list:
    """Events with each piece as single characters, so that beginnings can be compared."""
    flat = []
    for event in found:
        piece = getattr(event, "text", None) or getattr(event, "json", None)
        flat += [(type(event), character) for character in piece] if piece else [event]
    return flat


def test_a_call_in_a_thought_that_never_ends_is_one(tokenizer):
    ids = ids_of(tokenizer, f"hm {CALL} no, {NOW}")
    found, _ = events(tokenizer, ids, tools=TOOLS, thinking=True)
    assert told(found) == [("think", "hm <tool_call> no,"), ("now", "{}")]
    found, _ = events(tokenizer, ids, tools=TOOLS, thinking=True, cut=True)
    assert told(found) == [("think", f"hm <tool_call> no, {NOW}".translate(SPELLED))]
    found, _ = events(tokenizer, ids, tools=[], thinking=True)
    assert told(found) == [("think", f"hm <tool_call> no, {NOW}".translate(SPELLED))]


def test_without_tools_calls_are_text(tokenizer):
    text = f"a\n{NOW}\n\n{call('write', path='b')}"
    found, _ = events(tokenizer, ids_of(tokenizer, text))
    assert told(found) == [("text", text.translate(SPELLED))]


def test_a_model_may_think_unasked(tokenizer):
    text = f"{THINK}\nhm\n{END_THINK}\n\nHi{THINK}"
    found, _ = events(tokenizer, ids_of(tokenizer, text), thinking=False)
    assert told(found) == [("think", "hm"), ("text", "Hi<think>")]


def test_a_cut_call_is_told_as_it_was_written(tokenizer):
    text = f"a\n\n{call('write', path='b', content='c')}"[:-30]
    found, _ = events(tokenizer, ids_of(tokenizer, text), tools=TOOLS, cut=True)
    assert told(found) == [("text", "a"), ("cut", text[3:].translate(SPELLED))]


def test_strings_are_told_while_they_are_written(tokenizer):
    given = reader(tokenizer, tools=TOOLS)
    start = f"{CALL}\n<function=write>\n<parameter=content>\n"
    for token in ids_of(tokenizer, start + "one line\nand another"):
        given.push(token)
    assert arguments(given.take(), 0) == '{"content": "one line\\nand another'
    for token in ids_of(tokenizer, "\n</para"):
        given.push(token)
    assert given.take() == []
    given.push(tokenizer.encode("x")[0])
    assert arguments(given.take(), 0) == "\\n</parax"


def test_only_the_first_call_unless_parallel(tokenizer):
    text = f"a\n\n{NOW}"
    ids = ids_of(tokenizer, text)
    given = reader(tokenizer, tools=TOOLS, parallel=False)
    assert given.stops == ["</tool_call>"]
    assert [given.push(token) for token in ids] == [False] * (len(ids) - 1) + [True]
    assert told(given.finish(cut=False)) == [("text", "a"), ("now", "{}")]
    assert (given.calls, given.stop) == (1, "")
    two = f"{CALL}\n<function=now>\n</function>\n<function=now>\n</function>\n{END_CALL}"
    found, _ = events(tokenizer, ids_of(tokenizer, two), tools=TOOLS, parallel=False)
    assert told(found) == [("now", "{}")]


STOPS = [
    ("one two", ["e t"], [("text", "on")], "e t"),
    (f"two{END_THINK}\n\ntwo", ["two"], [("think", "two")], "two"),
    (f"a\n\n{NOW}", ["\n\n"], [("text", "a")], "\n\n"),
    (
        f"a\n{NOW}\n\nb",
        ["\n\n", "now", "</", ">"],
        [("text", "a"), ("now", "{}"), ("text", "b")],
        "",
    ),
    (f"ab\n{NOW}cd", ["b\nc", "bc"], [("text", "ab"), ("now", "{}"), ("text", "cd")], ""),
    ("a<function", ["<"], [("text", "a")], "<"),
    ("a\n<function=x", ["=x"], [("text", "a\n<function")], "=x"),
    (f"a{CALL}b", ["call"], [("text", "a<tool_")], "call"),
    ("ab ", ["b c"], [("text", "ab ")], ""),
]


@pytest.mark.parametrize("text, stops, expected, stop", STOPS)
def test_stop_strings_are_looked_for_in_text_alone(tokenizer, text, stops, expected, stop):
    thinking = END_THINK in text
    for sizes in ([1], [2], [3, 5], [50]):
        other, ids = cut_up(tokenizer, text, sizes)
        found = events(other, ids, tools=TOOLS, stops=stops, thinking=thinking)
        assert (told(found[0]), found[1]) == (expected, stop)


def test_a_stop_string_ends_the_answer_at_its_token(tokenizer):
    other, ids = cut_up(tokenizer, "one two three", [2])
    given = reader(other, stops=["two"])
    assert [given.push(token) for token in ids[:4]] == [False, False, False, True]
    assert given.take() == [Text("one ")] and given.finish(cut=False) == []


def test_stop_strings_of_the_first_tokens_are_text(tokenizer):
    other, ids = cut_up(tokenizer, "a.b.c.d", [1])
    found = events(other, ids, stops=["."], least=5)
    assert (told(found[0]), found[1]) == ([("text", "a.b.c")], ".")


def test_raw_text_keeps_its_markup(tokenizer):
    text = f"{THINK}a{END_THINK}\n\n{NOW}\n"
    end = tokenizer.control["<|im_end|>"]
    found, _ = events(tokenizer, [*ids_of(tokenizer, text), end], tools=TOOLS, raw=True)
    assert told(found) == [("text", text.translate(SPELLED))]


def test_ids_of_no_token_and_halves_of_characters(tokenizer):
    smile = tokenizer.encode("🙂")
    assert len(smile) > 1
    end, over = tokenizer.control["</think>"], tokenizer.count + 5
    found, _ = events(tokenizer, [smile[0], end, over, -1, *smile, smile[0]], thinking=True)
    assert told(found) == [("think", "\ufffd"), ("text", "\ufffd\ufffd🙂\ufffd")]


def test_reasoning_tokens_and_what_is_counted(tokenizer):
    given = reader(tokenizer, tools=TOOLS, thinking=True)
    thought = ids_of(tokenizer, f"hm hm{END_THINK}")
    for token in thought:
        assert given.thinking
        given.push(token)
    assert not given.thinking
    for token in ids_of(tokenizer, f"\n\n{CALL}x{NOW}"):
        given.push(token)
    given.finish(cut=False)
    assert (given.reasoning_tokens, given.calls, given.unparsed) == (len(thought), 1, 1)
