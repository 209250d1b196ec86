import re
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer

from experiments import math_tasks, probes, tasks
from experiments.text_readers import READERS
from tr.checkpoint.template import render as render_chat

ASSETS = Path(__file__).parents[2] / "tr" / "assets" / "tiny"
TEXT = "\n\n".join(
    " ".join(f"Sentence {i} of part {p} is here." for i in range(20)) for p in "abcd"
)
GENERATORS = {
    "math": tasks.math_problem,
    "copy": lambda rng: tasks.copy_document(rng, TEXT),
    "needle": lambda rng: tasks.needle(rng, TEXT, 1500),
    "chat": tasks.chat_turn,
    "tool": tasks.tool_call,
    "essay": lambda rng: tasks.essay(rng, TEXT),
    "code": lambda rng: tasks.code_task(rng, "x = 1\n" * 400),
}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(ASSETS / "tokenizer.json"))


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_gives_one_chat(name):
    make = GENERATORS[name]
    chats = [make(Random(i)) for i in range(40)]
    assert chats == [make(Random(i)) for i in range(40)]
    assert len({str(c.messages) for c in chats}) > 20
    for chat in chats:
        assert chat.messages[-1]["role"] == "assistant" and chat.messages[-1]["content"]


@pytest.mark.parametrize("family", math_tasks.FAMILIES, ids=lambda f: f.__name__)
def test_sums_are_right(family):
    for seed in range(200):
        question, steps, answer = family(Random(seed))
        sums = [m for step in steps for m in re.findall(r"(\d+(?: [+*-] \d+)+) = (\d+)", step)]
        assert sums and all(eval(left) == int(right) for left, right in sums)
        assert answer >= 0 and re.search(rf"\b{answer}\b", "\n".join(steps))
        assert "{" not in question


def test_math_answers_are_long_and_end_alike(tokenizer):
    for seed in range(50):
        question, text, answer = math_tasks.problem(Random(seed))
        assert text.endswith(f"The answer is {answer}.")
        assert 50 <= len(tokenizer.encode(text).ids) <= 220


def test_copies_come_from_the_prompt():
    for seed in range(200):
        ask, answer = (m["content"] for m in tasks.copy_document(Random(seed), TEXT).messages)
        half = answer[: (len(answer) - 2) // 2]
        assert answer in ask or answer == f"{half}\n\n{half}" and half in ask


def test_needles_are_in_the_text():
    depths = []
    for seed in range(100):
        turns = [m["content"] for m in tasks.needle(Random(seed), TEXT * 4, 3000).messages]
        for answer in turns[1::2]:
            for fact in re.findall(r"[^.]+\.", answer):
                assert fact.strip() in turns[0]
                depths.append(turns[0].index(fact.strip()) / len(turns[0]))
    assert min(depths) < 0.15 and max(depths) > 0.8


def test_tool_calls_fit_their_schema():
    types = {"string": str, "integer": int, "boolean": bool, "array": list}
    for seed in range(200):
        chat = tasks.tool_call(Random(seed))
        declared = {t["function"]["name"]: t["function"]["parameters"] for t in chat.tools or []}
        for call in chat.messages[1]["tool_calls"]:
            schema = declared[call["function"]["name"]]
            arguments = call["function"]["arguments"]
            assert set(schema["required"]) <= set(arguments) <= set(schema["properties"])
            for key, value in arguments.items():
                assert isinstance(value, types[schema["properties"][key]["type"]])


def test_continuations_rebuild_the_text():
    for seed in range(50):
        ask, rest = (m["content"] for m in tasks.essay(Random(seed), TEXT).messages)
        start = ask.removeprefix("Continue this text:\n\n")
        start = start.removesuffix("\n\nContinue the text above.")
        whole = re.sub(r"\s+", " ", f"{start} {rest}")
        assert whole.strip() in re.sub(r"\s+", " ", TEXT)


def test_responses_are_exactly_the_answers():
    template = (ASSETS / "chat_template.jinja").read_text()
    for name, make in GENERATORS.items():
        chat = make(Random(3))
        pieces = tasks.render(chat, template)
        whole = render_chat(template, chat.messages, chat.tools, enable_thinking=False)
        assert "".join(text for text, _ in pieces) + "\n" == whole, name
        answers = [m for m in chat.messages if m["role"] == "assistant"]
        responses = [text for text, response in pieces if response]
        assert len(answers) == len(responses)
        for message, text in zip(answers, responses, strict=True):
            assert text.startswith(message["content"].strip()) and text.endswith("<|im_end|>")
            assert text.count("<tool_call>") == len(message.get("tool_calls", []))


def test_needle_probe(tokenizer):
    trials = probes.needle_trials(tokenizer, n=4, tokens=2048, seed=0)
    assert trials == probes.needle_trials(tokenizer, n=4, tokens=2048, seed=0)
    assert trials[0] != probes.needle_trials(tokenizer, n=1, tokens=2048, seed=1)[0]
    for trial in trials:
        assert 1980 <= len(tokenizer.encode(trial.prompt).ids) <= 2048
        assert trial.prompt.count(trial.answer) == 1 and trial.passed(trial.answer)


def test_copy_probe(tokenizer):
    for trial in probes.copy_trials(tokenizer, n=10, tokens=200, seed=0):
        assert 150 <= len(tokenizer.encode(trial.answer).ids) <= 200
        assert trial.answer in trial.prompt and not trial.passed(trial.answer[:-1])


READ = {
    "html": ("<p>One &amp; two</p><pre>code</pre><table><tr><td>3</td></tr></table>", "One & two"),
    "rst": ("A :func:`~a.b` and ``c__d``.\n\n.. note::\n\n   gone\n", "A a.b and c__d."),
    "pod": ("=pod\n\nUse B<this> or L<text|perlop>.\n\n  code\n", "Use this or perlop."),
    "man": (".TH A 1\n.SH B\nIt \\fBis\\fP\nso\\-so.\n.nf\ncode\n.fi\n", "It is so-so."),
    "wml": ('name= _ "He said ""no"".\nNow."', 'He said "no". Now.'),
    "json": ('[{"id": "x", "description": {"str": "A big box."}}]', "A big box."),
    "records": ("One\nline.\n%\n", "One line."),
    "markdown": ("# T\n\nIt is **bold** and [here](url).\n", "It is bold and here."),
    "plain": ("co-\noperate\nnow\n", "co-operate now"),
}


@pytest.mark.parametrize("name", READ)
def test_readers(name, tmp_path):
    source, expected = READ[name]
    (tmp_path / "f").write_text(source)
    assert expected in READERS[name](tmp_path / "f")
