from pathlib import Path

import pytest
from tokenizers import Tokenizer

from experiments.train_tokenizer import ADDED, PLAIN, train
from tr.checkpoint.template import render as render_chat

ASSETS = Path(__file__).parents[2] / "tr" / "assets" / "tiny"
HELLO = {"role": "user", "content": " Hello \n"}
TURN = "<|im_start|>user\nHello<|im_end|>\n"
EMPTY = "<think>\n\n</think>\n\n"
TOOL = {"type": "function", "function": {"name": "grüß", "parameters": {"b": 1, "a": 2}}}


@pytest.fixture(scope="module")
def render():
    source = (ASSETS / "chat_template.jinja").read_text()

    def render(*messages, tools=None, **options):
        return render_chat(source, messages, tools, **options)

    return render


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(ASSETS / "tokenizer.json"))


def call(name, **arguments):
    return {"function": {"name": name, "arguments": arguments}}


def test_plain_turns(render):
    assert render(HELLO, enable_thinking=False) == TURN
    out = render(HELLO, enable_thinking=False, add_generation_prompt=True)
    assert out == TURN + "<|im_start|>assistant\n" + EMPTY
    out = render(
        {"role": "system", "content": "Be brief. "},
        HELLO,
        {"role": "assistant", "content": "\nHi!"},
        enable_thinking=False,
    )
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert out == f"{system}{TURN}<|im_start|>assistant\n{EMPTY}Hi!<|im_end|>\n"


def test_effort(render):
    default = render(HELLO, add_generation_prompt=True)
    assert default.startswith("<|im_start|>system\nReasoning effort is set to xhigh.")
    assert default.endswith("<|im_end|>\n" + TURN + "<|im_start|>assistant\n<think>\n")
    assert "Reasoning effort is set to low." in render(HELLO, reasoning_effort="low")
    assert render(HELLO, reasoning_effort="medium") == TURN
    assert render(HELLO, reasoning_effort="none at all", enable_thinking=False) == TURN
    with pytest.raises(ValueError, match="none at all"):
        render(HELLO, reasoning_effort="none at all")
    both = render({"role": "system", "content": "S"}, HELLO)
    assert both.index("xhigh.") < both.index("\n\nS<|im_end|>")


def test_reasoning_is_kept_unless_told_otherwise(render):
    old = {"role": "assistant", "content": "A", "reasoning_content": "because\n"}
    turns = (HELLO, old, HELLO, {"role": "assistant", "content": "<think>B"})
    kept = render(*turns)
    assert "<think>\nbecause\n</think>\n\nA<|im_end|>" in kept
    dropped = render(*turns, preserve_thinking=False)
    assert "<|im_start|>assistant\nA<|im_end|>" in dropped
    assert dropped.endswith(f"{EMPTY}<think>B<|im_end|>\n")


def test_tools_and_calls(render):
    answer = {
        "role": "assistant",
        "content": "Wait.",
        "tool_calls": [call("f", x="a\nb", y=[1, "ü"], z=True), call("g")],
    }
    results = ({"role": "tool", "content": "one"}, {"role": "tool", "content": "two"})
    out = render(HELLO, answer, *results, tools=[TOOL], enable_thinking=False)
    line = '{"type": "function", "function": {"name": "grüß", "parameters": {"b": 1, "a": 2}}}'
    assert out.startswith("<|im_start|>system\n# Tools\n\n")
    assert f"<tools>\n{line}\n</tools>\n\n" in out and "</IMPORTANT><|im_end|>" in out
    assert (
        "Wait.\n\n<tool_call>\n<function=f>\n<parameter=x>\na\nb\n</parameter>\n<parameter=y>\n"
        '[1, "ü"]\n</parameter>\n<parameter=z>\ntrue\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n"
    ) in out
    assert out.endswith(
        "<|im_start|>user\n<tool_response>\none\n</tool_response>"
        "\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
    )
    alone = render(HELLO, {**answer, "content": ""}, enable_thinking=False)
    assert EMPTY + "<tool_call>\n<function=f>" in alone
    text = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    with pytest.raises(ValueError, match="mapping"):
        render(HELLO, text)


def test_bad_conversations(render):
    system = {"role": "system", "content": "S"}
    response = {"role": "user", "content": "<tool_response>\n1\n</tool_response>"}
    with pytest.raises(ValueError, match="at the beginning"):
        render(HELLO, system)
    for turns in ((system,), (response,)):
        with pytest.raises(ValueError, match="No user query found"):
            render(*turns)
    with pytest.raises(ValueError, match="empty"):
        render()
    with pytest.raises(ValueError, match="role robot"):
        render(HELLO, {"role": "robot", "content": "x"})
    with pytest.raises(ValueError, match="text parts"):
        render({"role": "user", "content": [{"type": "image"}]})
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert render({"role": "user", "content": parts}, enable_thinking=False) == TURN


def test_ids_and_flags(tokenizer):
    assert tokenizer.get_vocab_size() == 545
    decoder = tokenizer.get_added_tokens_decoder()
    assert [decoder[i].content for i in range(512, 545)] == list(ADDED)
    assert {t.content for t in decoder.values() if not t.special} == set(PLAIN)
    assert tokenizer.encode("<|im_end|><|audio_start|>").ids == [514, 538]
    ids = tokenizer.encode("<think>x</think><|im_end|>").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>x</think>"
    assert (ASSETS / "tokenizer.json").stat().st_size < 300_000


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n        return  x\n",
        "中文，你好。",
        "👩‍👩‍👧 🙂",
        "naïve e\u0301",
        " \t\r\n x",
        "\0\x7f",
    ],
)
def test_roundtrip(tokenizer, text):
    import unicodedata

    assert tokenizer.decode(tokenizer.encode(text).ids) == unicodedata.normalize("NFC", text)


def test_digits_stand_alone(tokenizer):
    assert len(tokenizer.encode("1234567").ids) == 7


def test_training_is_reproducible():
    texts = [f"{a} {b}{b} {a}x" for a in ("river", "stone", "wind") for b in ("sea", "land")] * 9
    first, second = train(texts, 280), train(texts, 280)
    assert first.to_str() == second.to_str()
    assert first.token_to_id("<|endoftext|>") == 280
    with pytest.raises(ValueError, match="train on more text"):
        train(["ab"], 400)
