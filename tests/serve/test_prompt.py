"""Ids of a conversation from turn to turn: what stays the same, what is tokenised again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.reading import events, ids_of
from tests.serve.test_normalise import answer, result, system, user
from tr.assemble import EMBEDDED
from tr.checkpoint.tokenizer import load_tokenizer
from tr.serve.conversation import Call, Conversation
from tr.serve.events import CallClosed, CallOpened, Reasoning, Text
from tr.serve.prompt import Prompter
from tr.serve.segments import Segments
from tr.serve.tags import CALL, END_CALL, END_THINK

TOKENIZER = load_tokenizer(EMBEDDED)
CONTROL = list(TOKENIZER.control)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "number"}}}
TOOL = {"type": "function", "function": {"name": "edit", "parameters": SCHEMA}}
TALK = [
    system("Be brief. 中文"),
    user("What is 1 < 2?"),
    answer("True.", "Easy."),
    user("Sure? 🙂"),
]


@pytest.fixture
def prompter(tokenizer):
    return Prompter(tokenizer)


WORDS = st.text("ab <>|\n\t/é文🙂", max_size=12).filter(lambda t: not any(c in t for c in CONTROL))


@settings(max_examples=80)
@given(texts=st.lists(WORDS, min_size=1, max_size=5), thinking=st.booleans(), tools=st.booleans())
def test_segments_give_the_ids_of_the_whole(texts, thinking, tools):
    """Against the tokenizer's own way with the whole text, control tokens and all."""
    messages = [user(t) if n % 2 == 0 else answer(t, t[::-1]) for n, t in enumerate(texts)]
    messages += [user("end")] if len(texts) % 2 == 0 else []
    talk = Conversation(messages, [TOOL] if tools else [], thinking)
    found = Prompter(TOKENIZER).render(talk)
    assert found.ids == TOKENIZER.encode(TOKENIZER.decode(found.ids), special=True)
    switches = {"enable_thinking": thinking, "reasoning_effort": "medium"}
    plain = [
        {"role": m.role, "content": m.text, "reasoning_content": m.reasoning} for m in messages
    ]
    assert found.ids == TOKENIZER.chat(plain, talk.tools, **switches)
    assert found.thinking == thinking


TURN = st.one_of(
    WORDS.map(user),
    WORDS.map(lambda text: system(f"s{text}")),
    st.builds(
        answer, WORDS, st.none() | WORDS, st.lists(st.builds(Call, *[WORDS] * 3), max_size=2)
    ),
    st.builds(result, WORDS, st.sampled_from(["", "a", "b"])),
)


@settings(max_examples=60)
@given(first=WORDS, turns=st.lists(TURN, max_size=8), thinking=st.booleans())
def test_what_was_sent_before_an_answer_begins_what_is_sent_later(first, turns, thinking):
    messages, prompter = [user(first), *turns, user("end")], Prompter(TOKENIZER)
    whole = prompter.render(Conversation(messages, thinking=thinking)).ids
    for n, message in enumerate(messages):
        if message.role == "assistant" and messages[n - 1].role != "assistant":
            before = prompter.render(Conversation(messages[:n], thinking=thinking))
            mark = before.marks[-1]
            assert whole[:mark] == before.ids[:mark]


def test_marks_are_the_ends_of_turns(tokenizer, prompter):
    found = prompter.render(Conversation(TALK))
    ends = [tokenizer.decode(found.ids[:mark]) for mark in found.marks]
    whole = tokenizer.decode(found.ids)
    opened = "<|im_start|>assistant\n<think>\n"
    parts = [*whole.removesuffix(opened).split("<|im_start|>")[1:]]
    assert ends == ["".join(f"<|im_start|>{p}" for p in parts[: n + 1]) for n in range(len(parts))]
    assert len(ends) == len(TALK) and ends[0].startswith("<|im_start|>system\nBe brief.")
    assert prompter.count(Conversation(TALK)) == len(found.ids)


def test_a_second_turn_tokenises_what_is_new(tokenizer, prompter):
    talk = Conversation(TALK, [TOOL])
    first = prompter.render(talk)
    before = prompter.encoded
    assert prompter.render(talk).ids == first.ids and prompter.encoded == before
    longer = replace(talk, messages=[*TALK, answer("Yes, quite.", "Hm."), user("Thanks.")])
    second = prompter.render(longer)
    new = ["\nHm.\n", "\n\nYes, quite.", "user\nThanks."]
    assert prompter.encoded - before == len("".join(new))
    assert second.ids == Prompter(tokenizer).render(longer).ids
    assert second.ids[: first.marks[-1]] == first.ids[: first.marks[-1]]


def test_remembered_text_is_bounded():
    asked = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return list(text.encode())

    segments = Segments(encode, limit=10)
    for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb", "x" * 11, "x" * 11):
        assert list(segments.ids(text)) == list(text.encode())
    assert asked == ["aaaa", "bbbb", "cccc", "bbbb", "x" * 11, "x" * 11]
    assert segments.encoded == 38


def echoed(found, reasoning: bool = True):
    """An answer as a client gives it back."""
    text = "".join(e.text for e in found if isinstance(e, Text))
    thought = "".join(e.text for e in found if isinstance(e, Reasoning)) if reasoning else None
    names = [e.name for e in found if isinstance(e, CallOpened)]
    written = [e.arguments for e in found if isinstance(e, CallClosed)]
    return answer(text, thought, [Call(n, a) for n, a in zip(names, written, strict=True)])


def bytewise(tokenizer, marked: str) -> list[int]:
    """Other tokens than the tokenizer would choose: one for each byte."""
    single = {piece: n for n, piece in enumerate(tokenizer.pieces) if piece and len(piece) == 1}
    ids = []
    for token in ids_of(tokenizer, marked):
        if token in tokenizer.control.values():
            ids.append(token)
        else:
            ids += [single[bytes([b])] for b in tokenizer.pieces[token]]
    return ids


EDIT = "<function=edit>\n<parameter=path>\na\n\n</parameter>\n<parameter=n>\n 5.0 \n</parameter>\n"
EDIT = f"{CALL}\n{EDIT}</function>\n{END_CALL}"
ANSWERS = {
    "text": f"\nhm \n{END_THINK}\n\n\n Well. \n",
    "one line": f"hm{END_THINK}Well.",
    "call": f"hm\n{END_THINK}\n\n{EDIT}\n",
    "text and calls": f"hm\n{END_THINK}\n\nSo\n{EDIT}{EDIT}\nDone.",
    "call in the thought": f"hm\n{EDIT}",
}


ENDINGS = [(name, True) for name in ANSWERS] + [(name, False) for name in list(ANSWERS)[:-1]]


@pytest.mark.parametrize("kept", [True, False], ids=["reasoning", "dropped"])
@pytest.mark.parametrize("name, end", ENDINGS)
def test_an_answer_keeps_its_ids(tokenizer, prompter, name, kept, end):
    talk = Conversation(TALK, [TOOL])
    first = prompter.render(talk)
    raw = bytewise(tokenizer, ANSWERS[name])
    ids = [*raw, *tokenizer.eos[:1]] if end else raw
    found, _ = events(tokenizer, ids, tools=first.tools, thinking=True, cut=not end)
    prompter.finished(first, ids)
    more = [*TALK, echoed(found, kept), *([result("ok")] if EDIT in ANSWERS[name] else [])]
    second = prompter.render(replace(talk, messages=[*more, user("On.")]))
    assert second.spliced == 1
    after = [tokenizer.control["<|im_end|>"], *tokenizer.encode("\n")]
    expected = [*first.ids, *raw, *after]
    assert second.ids[: len(expected)] == expected and len(expected) in second.marks
    anew = Prompter(tokenizer).render(replace(talk, messages=[*more, user("On.")]))
    assert anew.spliced == 0 and anew.ids != second.ids
    assert anew.ids[: first.marks[-1]] == first.ids[: first.marks[-1]]
    assert tokenizer.decode(anew.ids).startswith(tokenizer.decode(first.ids))


def test_the_chain_of_spliced_answers_holds(tokenizer, prompter):
    messages, known = [user("hi")], []
    for n in range(4):
        made = prompter.render(Conversation(messages, thinking=n % 2 == 0))
        assert made.ids[: len(known)] == known and made.spliced == n
        raw = bytewise(tokenizer, f"hm{END_THINK}{n}" if n % 2 == 0 else f" {n}")
        known = [*made.ids, *raw]
        found, _ = events(tokenizer, raw, thinking=made.thinking)
        prompter.finished(made, [*raw, *tokenizer.eos[:1]])
        messages += [echoed(found, reasoning=False), user(f"and {n}?")]


def test_numbers_that_a_client_writes_anew(tokenizer, prompter):
    talk = Conversation(TALK, [TOOL])
    first = prompter.render(talk)
    prompter.finished(first, bytewise(tokenizer, ANSWERS["call"]))
    call = Call("edit", {"n": 5, "path": "a\n"})
    more = [*TALK, answer("", "hm", [call]), result("ok")]
    assert prompter.render(replace(talk, messages=more)).spliced == 1
    other = replace(call, arguments={"n": 5, "path": "a"})
    more = [*TALK, answer("", "hm", [other]), result("ok")]
    assert prompter.render(replace(talk, messages=more)).spliced == 0


def test_what_is_not_spliced(tokenizer, prompter):
    talk = Conversation(TALK)
    first = prompter.render(talk)
    prompter.finished(first, ids_of(tokenizer, f"hm{END_THINK}\n\nWell."))

    def spliced(*messages, **options) -> int:
        return prompter.render(replace(talk, messages=[*messages, user("On.")], **options)).spliced

    assert spliced(*TALK, answer("Well.", "hm")) == spliced(*TALK, answer("Well.")) == 1
    assert spliced(*TALK, answer("Well!", "hm")) == 0  # another text
    assert spliced(*TALK, answer("Well.", "ha")) == 0  # another thought
    assert spliced(*TALK[1:], answer("Well.", "hm")) == 0  # another beginning
    assert spliced(*TALK, answer("Well.", "hm"), preserve_thinking=False) == 0
    strict = Prompter(tokenizer, reinsert=False)
    strict.finished(strict.render(talk), ids_of(tokenizer, f"hm{END_THINK}\n\nWell."))
    more = replace(talk, messages=[*TALK, answer("Well."), user("On.")])
    assert strict.render(more).spliced == 0


@pytest.mark.parametrize("raw", ["hm", f"hm{END_THINK}\n\n{EDIT[:40]}", ""])
def test_what_is_no_whole_answer_is_not_kept(tokenizer, prompter, raw):
    talk = Conversation(TALK, [TOOL])
    made = prompter.render(talk)
    ids = ids_of(tokenizer, raw)
    prompter.finished(made, ids)
    found, _ = events(tokenizer, ids, tools=made.tools, thinking=True, cut=True)
    reasoning = "".join(e.text for e in found if isinstance(e, Reasoning))
    more = [*TALK, answer("", reasoning), user("On.")]
    assert prompter.render(replace(talk, messages=more)).spliced == 0


def test_answers_that_share_a_text_are_told_apart_by_their_thoughts(tokenizer, prompter):
    talk = Conversation(TALK)
    made = prompter.render(talk)
    for thought in ("one", "two"):
        prompter.finished(made, ids_of(tokenizer, f" {thought} {END_THINK}\n\nYes."))
    for given_thought, kept in (("one", "one"), ("two", "two"), (None, "two")):
        more = replace(talk, messages=[*TALK, answer("Yes.", given_thought), user("On.")])
        assert f"<think>\n {kept} </think>\n\nYes." in tokenizer.decode(prompter.render(more).ids)


def test_the_ledger_is_bounded(tokenizer):
    prompter = Prompter(tokenizer, ledger_ids=60)
    made = [prompter.render(Conversation([user(f"{n}")])) for n in range(3)]
    for one in made:
        prompter.finished(one, ids_of(tokenizer, f"{END_THINK}{'x' * 15}"))
    more = [Conversation([user(f"{n}"), answer("x" * 15), user("On.")]) for n in range(3)]
    assert [prompter.render(one).spliced for one in more] == [0, 1, 1]
