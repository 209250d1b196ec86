"""Evaluations on the embedded model, on answers that are known, through a server; bad input."""

import json
from dataclasses import asdict

import pytest

from experiments import evaluating
from experiments.evaluating import Answer, Remote
from experiments.gsm8k import Options
from experiments.openai_stream import Piece, Reply
from experiments.serving import serving
from tests.experiments.runs import record_of
from tr.assemble import EMBEDDED, assemble
from tr.checkpoint.tokenizer import load_tokenizer
from tr.evals.instructions.prompts import ROWS
from tr.evals.programs import PROBLEMS
from tr.overrides import load

SMALL = ("device=cpu", "threads=1", "kv.capacity_tokens=512")
GSM = ("+exp=gsm8k", *SMALL, "params.problems=2", "params.limit=1", "max_new_tokens=16")


def items(folder):
    return [json.loads(line) for line in (folder / "out" / "items.jsonl").read_text().splitlines()]


def file(folder, rows, name="set.jsonl"):
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def says(monkeypatch):
    """Answers that are given by id, in place of the model's."""
    answers = {}

    class Known:
        judge = None

        def __init__(self, config, o):
            pass

        def ask(self, asked, sample, verify):
            text = answers[asked.id]
            return Answer(text, "", len(text), "cut" in text, 1.0, 0.5, len(text))

        def figures(self):
            return {}

        def warnings(self):
            return ()

    monkeypatch.setattr(evaluating, "Engine", Known)
    return answers


def test_gsm8k_writes_what_raw_decoding_and_a_server_write(tmp_path):
    record = record_of(tmp_path / "a", *GSM)
    assert record["verdict"]["exact"] and record["verdict"]["compared_tokens"] == 2 * 16
    figures = record["figures"]["sets"]["trained_kinds"]
    assert figures["problems"] == figures["truncated"] == figures["answers"] == 1
    assert figures["set_problems"] == 2 and len(figures["set_sha256"]) == 64
    assert figures["accuracy_low"] <= figures["accuracy"] <= figures["accuracy_high"]
    assert figures["tokens_per_s"] > 0 and figures["tokens_per_step"] > 2
    assert "trained_kinds: 1 of 1 answers were cut; see max_new_tokens" in record["warnings"]
    one, other = items(tmp_path / "a")
    assert (one["id"], other["set"]) == ("trained_kinds/0", "new_kinds")
    assert len(one["prompt_sha256"]) == 64 and one["tokens"] == 16 and one["score"]["expected"]

    config = load([*GSM, "draft=raw"])
    with serving(config, assemble(config), 512, 1 << 30) as s:
        url = f"params.server=http://127.0.0.1:{s.port}"
        record = record_of(tmp_path / "b", *GSM, url)
    assert record["figures"]["server"]["kind"] == "tr" and record["verdict"] is None
    same = ("id", "text", "tokens", "truncated", "prompt_sha256", "score")
    own, told = ([{k: i[k] for k in same} for i in items(tmp_path / x)] for x in "ab")
    assert told[0] == own[0]  # the other one is a near tie: a server's chunks end elsewhere
    assert told[1]["prompt_sha256"] == own[1]["prompt_sha256"]


def test_thoughts_are_no_answers(tmp_path):
    """The embedded model's thoughts are empty: it ends them at once."""
    few = ("params.thinking=true", "params.verify=0", "max_new_tokens=5", "draft=raw")
    record = record_of(tmp_path, *GSM, *few)
    one = items(tmp_path)[0]
    assert record["verdict"] is None and one["thought"] == "" and "think" not in one["text"]
    assert 0 < len(load_tokenizer(EMBEDDED).encode(one["text"])) < one["tokens"] == 5


@pytest.mark.parametrize(
    "pieces, text, thought",
    [
        ([Piece(0.5, "so 3</think>\n\n"), Piece(1.5, "4")], "4", "so 3"),
        ([Piece(0.5, "so 3", True), Piece(1.5, "4")], "4", "so 3"),
        ([Piece(0.5, "4"), Piece(1.5, " or 5")], "4 or 5", ""),
    ],
)
def test_a_servers_thought_is_taken_off(monkeypatch, pieces, text, thought):
    asked = evaluating.Ask("1", [("user", "What?")], ("x",))
    reply = Reply(pieces, reason="length", seconds=2.0)
    sent = []
    monkeypatch.setattr(evaluating, "models", lambda server: ["m"])
    monkeypatch.setattr(evaluating, "stream", lambda *told: sent.append(told) or reply)
    monkeypatch.setattr(
        evaluating.rival_servers, "recognise", lambda s: evaluating.rival_servers.Found("vLLM")
    )
    config = load([*GSM, "params.server=http://x:1", "params.thinking=true"])
    by = Remote(config, config.options(Options))
    assert by.ask(asked, 2, True) == Answer(text, thought, 2, True, 2.0, 1.0, 1)
    assert "2" not in by.warnings() and "pieces of the stream" in by.warnings()[0]
    _, prompt, settings = sent[0]
    assert prompt == [{"role": "user", "content": "What?"}]
    assert settings["stop"] == ["x"] and settings["seed"] == 2 and settings["max_tokens"] == 16
    assert settings["chat_template_kwargs"] == {"enable_thinking": True}


def test_gsm8k_from_a_file_with_shots(tmp_path, says):
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(4)]
    path, shots = file(tmp_path, rows), file(tmp_path, rows[3:], "shots.jsonl")
    says |= {"set/0": "It is 1.", "set/1": "#### 2 (not 7)", "set/2": "4, cut"}
    own = (f"params.path={path}", "params.limit=3", "params.shots=1")
    record = record_of(tmp_path, *GSM[:1], *own, f"params.shots_path={shots}")
    figures = record["figures"]["sets"]["set"]
    assert figures["accuracy"] == pytest.approx(2 / 3) and figures["truncated"] == 1
    assert (figures["problems"], figures["set_problems"]) == (3, 4)
    with pytest.raises(ValueError, match="is asked as well"):
        record_of(tmp_path / "b", *GSM[:1], *own[:2], "params.shots=1", f"params.shots_path={path}")
    with pytest.raises(ValueError, match="params.shots: 9 of the 1 in"):
        record_of(
            tmp_path / "c", *GSM[:1], *own[:2], "params.shots=9", f"params.shots_path={shots}"
        )


def test_ifbench_counts_prompts_and_instructions(tmp_path, says):
    rows = [*ROWS[:2], {**ROWS[7], "instruction_id_list": ["words:start_verb"]}]
    rows[2]["kwargs"] = [{}]
    says |= {"own/0": "It stands. It shines.", "own/1": "* Bread and fish.", "own/7": "Go."}
    path = f"params.path={file(tmp_path, rows)}"
    with pytest.raises(
        ValueError, match=r"set: cannot check words:start_verb takes .* \(1 times\)"
    ):
        record_of(tmp_path / "a", "+exp=ifbench", path)
    record = record_of(tmp_path, "+exp=ifbench", path, "params.skip_unknown=true")
    figures = record["figures"]["sets"]["set"]
    assert (figures["problems"], figures["left_out"], figures["accuracy"]) == (2, 1, 0.5)
    assert figures["instruction_strict"] == 0.75 and figures["prompt_loose"] == 0.5
    families = record["figures"]["families"]["set"]
    assert families["keywords:existence"] == {"instructions": 1, "strict": 1, "loose": 1}
    assert any("1 prompts are left out: words:start_verb" in w for w in record["warnings"])
    only = f"params.path={file(tmp_path, rows[2:], 'only.jsonl')}"
    with pytest.raises(ValueError, match="only: no prompt is left"):
        record_of(tmp_path / "b", "+exp=ifbench", only, "params.skip_unknown=true")


def test_humaneval_runs_what_it_is_told(tmp_path, says):
    says |= {p.task_id: f"```python\n{p.prompt}{p.canonical_solution}```" for p in PROBLEMS}
    says["own/1"], says["own/2"] = "I cannot.", "```python\nwhile True: pass\n```"
    path = file(tmp_path, map(asdict, PROBLEMS))
    own = ("+exp=humaneval", "params.execute=true", "params.timeout_s=1", f"params.path={path}")
    record = record_of(tmp_path, *own, "params.limit=4")
    figures = record["figures"]["sets"]["set"]
    assert figures["accuracy"] == 0.5 and figures["timed_out"] == 1
    assert [i["score"]["outcome"] for i in items(tmp_path)] == [
        "passed", "failed", "timed out", "passed",
    ]  # fmt: skip


def test_samples_of_humaneval(tmp_path):
    own = ("+exp=humaneval", *SMALL, "params.execute=true", "params.limit=1", "max_new_tokens=4")
    with pytest.raises(ValueError, match="params.samples: greedy samples are alike"):
        record_of(tmp_path / "a", *own, "params.samples=2")
    sampled = (
        "sampling=sampled",
        "params.samples=3",
        "params.k=[2]",
        "params.verify=1",
        "params.chat=false",
    )
    record = record_of(tmp_path, *own, *sampled)
    assert record["verdict"]["exact"] and record["figures"]["sets"]["own"]["pass_2"] == 0
    assert len({item["text"] for item in items(tmp_path)}) > 1


def test_perplexity(tmp_path):
    own = ("+exp=perplexity", "device=cpu", "threads=1", "params.window=64", "params.stride=32")
    record = record_of(tmp_path, *own, "params.limit=130")
    prose, code = (record["figures"]["sets"][kind] for kind in ("prose", "code"))
    assert prose["tokens"] == code["tokens"] == 130 and prose["windows"] > 2
    assert 0.5 < code["bits_per_byte"] < prose["bits_per_byte_high"] < 8
    text = tmp_path / "some.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. 你好\n" * 9)
    record = record_of(tmp_path / "b", *own, f"params.paths=[{text}]")
    some = record["figures"]["sets"]["some.txt"]
    assert some["bytes"] == text.stat().st_size and some["perplexity_low"] < some["perplexity"]


REFUSED = [
    (["+exp=humaneval"], "params.execute=true allows it"),
    (["+exp=humaneval", "params.execute=true", "params.k=[2]"], "params.k: expected 1 .. "),
    ([*GSM, "params.limit=-1"], "params.limit and .verify must be 0 or more"),
    ([*GSM, "params.chat=false", "params.thinking=true"], "params.thinking=true needs a chat"),
    ([*GSM, "params.template=why"], "expected {question} in it, got 'why'"),
    ([*GSM, "kv.capacity_tokens=32"], "trained_kinds/0: its prompt has .* raise kv.capacity"),
    ([*GSM, "params.server=http://127.0.0.1:9"], "no server answers at"),
    ([*GSM, "params.server=localhost"], "server: expected http://HOST:PORT"),
    ([*GSM, "params.path=gone.jsonl"], "gone.jsonl is no file"),
    (["+exp=perplexity", "params.paths=[gone.txt]"], "gone.txt is no file"),
    (["+exp=perplexity", "params.window=64"], "params.stride: expected 1 .. 63"),
]


@pytest.mark.parametrize("args, said", REFUSED, ids=[said for _, said in REFUSED])
def test_mistakes_are_refused(tmp_path, args, said):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        record_of(tmp_path, *args)


def test_files_that_hold_no_text_are_refused(tmp_path):
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text("")
    binary.write_bytes(b"so \xff")
    for path, said in ((empty, "empty.txt is empty"), (binary, "not UTF-8 at byte 3")):
        with pytest.raises(ValueError, match=said):
            record_of(tmp_path / path.stem, "+exp=perplexity", f"params.paths=[{path}]")
