"""The command `python -m tr.generate`: what goes to which stream, and how it ends."""

import re
import shutil
import sys

import pytest

from tr import generate
from tr.assemble import EMBEDDED
from tr.checkpoint.tokenizer import load_tokenizer

SHORT = ("device=cpu", "threads=1", "kv.capacity_tokens=1024")
SUMMARY = re.compile(
    r"\[(\w+): (\d+\.\d\d) tokens per step, \d+ tokens/s;"
    r" (\d+) prompt \+ (\d+) new tokens, stopped by (\w+)\]\n$"
)


@pytest.fixture
def command(monkeypatch, capsys):
    """Call the command in this process: exit code, standard output, standard error."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["generate", *args])
        return generate.main(), *capsys.readouterr()

    return call


def figures(err: str) -> tuple[str, float, int, int, str]:
    found = SUMMARY.search(err)
    assert found, err
    draft, rate, prompt, new, stop = found.groups()
    return draft, float(rate), int(prompt), int(new), stop


def test_plain_text_goes_on_after_the_prompt(command):
    prompt = "def read(path):\n    with open(path) as"
    args = (f"prompt={prompt}", "chat=false", "max_new_tokens=24", *SHORT)
    code, out, err = command(*args)
    assert code == 0 and out.startswith(prompt) and len(out) > len(prompt) + 20
    draft, rate, length, new, stop = figures(err)
    assert (draft, new, stop) == ("dflash2", 24, "length") and 1.0 <= rate <= 8.0
    assert length == len(load_tokenizer(EMBEDDED).encode(prompt))
    raw = command(*args, "draft=raw")
    assert raw[:2] == (0, out) and figures(raw[2])[:2] == ("raw", 1.0)
    mtp = command(*args, "draft=mtp", "kernel=tile")
    assert mtp[:2] == (0, out) and figures(mtp[2])[0] == "mtp"


def test_a_chat_answer_ends_by_itself(command):
    """Without the prompt, the template's control tokens or the end token in the text."""
    prompt = "Tom has 3 apples and buys 4 more. How many apples does he have?"
    code, out, err = command(f"prompt={prompt}", "max_new_tokens=300", *SHORT)
    assert code == 0 and out.endswith("\n") and out.strip()
    assert prompt not in out and "<|" not in out and "�" not in out
    _, _, length, new, stop = figures(err)
    tokenizer = load_tokenizer(EMBEDDED)
    message = {"role": "user", "content": prompt}
    assert length == len(tokenizer.chat([message], enable_thinking=False))
    assert stop == "eos" and new == len(tokenizer.encode(out.rstrip("\n"))) + 1


def test_sampling_depends_on_the_seed_alone(command):
    args = ("prompt=The river", "chat=false", "sampling=sampled", "max_new_tokens=16", *SHORT)
    first, again, raw = (command(*args, *more)[1] for more in ((), (), ("draft=raw",)))
    assert first == again == raw
    assert command(*args, "sampling.seed=1")[1] != first


def test_the_window_stops_an_answer(command):
    prompt = "prompt=import os\nimport re\n\n\nclass"
    code, _, err = command(prompt, "chat=false", *SHORT[:2], "kv.capacity_tokens=32")
    _, _, length, new, stop = figures(err)
    assert code == 0 and stop == "window" and length + new == 33


@pytest.mark.parametrize(
    "args, message",
    [
        ([], 'prompt is empty; give one: prompt="'),
        (["prompt="], "prompt is empty"),
        (["prompt=a", "weights=checkpoint", "weights.path=no/such"], "no/such"),
        (["prompt=a", "weights=checkpoint"], "weights.path=FOLDER and weights.repo"),
        (["prompt=a", "weights=random"], "weights=random has no tokenizer"),
        (["prompt=a", "draft=oracle"], "draft=oracle needs a recorded text"),
        (["prompt=a", "draft.tokens=8"], "a block of 8 holds 1 .. 7 drafts, got 8"),
        (["prompt=a", "draft.path=no/such"], "no/such"),
        (["prompt=a", "kv.capacity_tokens=9000"], "1 .. 8192 tokens"),
        (["prompt=" + "word " * 40, "kv.capacity_tokens=30"], "exceed the window of 30"),
        (["promt=a"], "did you mean 'prompt'"),
        (["prompt=a", "jit=cuda_graph"], "cuda_graph captures CUDA graphs"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(command, args, message):
    code, out, err = command(*args, *(a for a in SHORT if not any("capacity" in x for x in args)))
    assert code == 2 and out == ""
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_a_folder_without_a_tokenizer(command, tmp_path):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(EMBEDDED / name, tmp_path / name)
    path = f"weights.path={tmp_path}"
    code, out, err = command("prompt=a", "weights=checkpoint", path, *SHORT)
    assert code == 2 and out == ""
    assert "has no tokenizer.json" in err and "copy tokenizer.json" in err
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / name, tmp_path / name)
    code, _, err = command("prompt=a", "weights=checkpoint", path, *SHORT)
    assert code == 2 and "has no draft/ folder; give draft.path or draft.repo" in err
    code, _, err = command("prompt=a", "weights=checkpoint", path, "draft=raw", *SHORT)
    assert code == 2 and "no chat template; put the checkpoint's chat_template.jinja" in err
    args = ("prompt=a", "weights=checkpoint", path, "draft=raw", "chat=false", "max_new_tokens=4")
    code, out, err = command(*args, *SHORT)
    assert code == 0 and out.startswith("a") and figures(err)[3] == 4


def test_help_and_interruption(command, monkeypatch):
    code, out, err = command("--help")
    assert code == 0 and "tr.generate" in out and "draft" in out and err == ""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "assemble", interrupt)
    code, _, err = command("prompt=a")
    assert code == 130 and err.endswith("interrupted\n")
