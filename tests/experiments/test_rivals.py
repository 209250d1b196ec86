"""rivals against servers that answer as others do, against our own, and against llama.cpp's."""

import functools
import importlib.util
import json
import multiprocessing
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import rival_servers, rivals
from experiments.openai_stream import Piece, Reply
from experiments.rival_figures import Answer, Ask, Measured, speeds
from experiments.rival_servers import Drafted, Found
from tests.experiments.fake_servers import Fake, chat, event, running, used
from tests.experiments.llama_file import write
from tests.experiments.runs import record_of
from tests.serve.listening import until
from tr.config import Config, Prompt, Sampling
from tr.overrides import load
from tr.report.record import Outcome

ROOT = Path(__file__).parents[2]
SMALL = ("device=cpu", "threads=1", "max_new_tokens=8", "params.prompts=1")
MODELS = {"data": [{"id": "qwen"}, {"id": "other"}]}


@functools.cache
def base() -> Config:
    """Two families: a chat prompt of `math`, a plain one of `essay`."""
    config = load(["+exp=rivals", *SMALL])
    sets = config.prompts.sets
    config.prompts.sets = {name: sets[name] for name in ("essay", "math")}
    return config


def run(url: str, greedy: bool = False, **params: Any) -> Outcome:
    drawn = Sampling(temperature=0) if greedy else base().sampling
    found = {**base().params, "server": url, **params}
    return rivals.run(replace(base(), params=found, sampling=drawn))


def counters(prefix: str, runs: list[Any]) -> str:
    """Speculation's counters after so many requests: 3 steps each, of 2 drafts, 4 accepted."""
    n = len(runs)
    name = f"{prefix}:spec_decode_num"
    return (
        "# HELP of counters\n"
        f'{prefix}:prompt_tokens_total{{model_name="m"}} 77.0\n'
        f'{name}_drafts_total{{engine="0",model_name="m"}} {3.0 * n}\n'
        f'{name}_drafts_created{{engine="0",model_name="m"}} 1.79e+09\n'
        f'{name}_draft_tokens_total{{engine="0",model_name="m"}} {6.0 * n}\n'
        f'{name}_accepted_tokens_total{{engine="0",model_name="m"}} {4.0 * n}\n'
        f'{name}_accepted_tokens_per_pos_total{{engine="0",position="0"}} {3.0 * n}\n'
        f'{name}_accepted_tokens_per_pos_total{{engine="0",position="1"}} {1.0 * n}\n'
    )


def said(path: str, *texts: str, usage: Any = None, **more: Any) -> list[bytes | float]:
    if path == "/v1/chat/completions":
        return chat(*texts, usage=usage, **more)
    last = [event(None, usage=usage, **more)]
    return [*(event({"text": text}) for text in texts), event({"finish_reason": "length"}), *last]


def test_vllm():
    fake = Fake({"/v1/models": MODELS, "/version": {"version": "0.33.0"}})
    fake.gets["/metrics"] = lambda: counters("vllm", fake.seen)
    fake.answer = lambda path, body: said(path, "a", "b", "c", usage=used(5))
    with running(fake) as url:
        outcome = run(url, flags="--no-enable-prefix-caching", name="mine")
    figures = outcome.figures
    assert figures["server"] == {
        "name": "mine",
        "kind": "vLLM",
        "version": "0.33.0",
        "model": "qwen",
        "tokens_counted_by": "usage",
        "flags": "--no-enable-prefix-caching",
    }
    for place in ("families", "sampled"):
        assert set(figures[place]) == {"essay", "math"}
        for found in figures[place].values():
            assert found["tokens_per_step"] == pytest.approx(1 + 4 / 3)
            assert found["accepted_by_position"] == pytest.approx([1, 1 / 3])
            assert found["accepted_fraction"] == pytest.approx(2 / 3)
            assert found["answer_tokens"] == 10 and found["prompt_tokens"] == 18
    assert outcome.verdict is None and outcome.warnings == ()
    assert figures["repeated"] == {mode: {"texts": 2, "equal": 2} for mode in ("greedy", "sampled")}
    salts = [body["cache_salt"] for body in fake.seen]
    assert len(salts) == len(set(salts)) == 10  # two to warm up, twice two, drawn in two ways
    greedy = next(body for body in fake.seen if body["temperature"] == 0 and "messages" in body)
    assert greedy["chat_template_kwargs"] == {"enable_thinking": False}
    neutral = {"top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "seed": 0}
    assert {name: greedy[name] for name in neutral} == neutral
    assert greedy["model"] == "qwen" and greedy["max_tokens"] == 8 and not greedy["ignore_eos"]
    assert {body["temperature"] for body in fake.seen} == {0, 0.8}


def test_sglang():
    info = {
        "version": "0.5.23",
        "speculative_algorithm": "EAGLE",
        "api_key": "secret",
        "internal_states": [{"last_gen_throughput": 80.0, "avg_spec_accept_length": 2.75}],
    }
    fake = Fake({"/v1/models": MODELS, "/get_server_info": info})
    fake.answer = lambda path, body: said(path, "a", usage=used(3))
    with running(fake) as url:
        server = run(url, model="other").figures["server"]
    assert server["kind"] == "SGLang" and server["tokens_per_step_since_start"] == 2.75
    assert server["speculative_algorithm"] == "EAGLE" and server["model"] == "other"
    assert "secret" not in json.dumps(server)
    assert all(body["top_k"] == -1 and body["model"] == "other" for body in fake.seen)


def test_llama_server():
    settings = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1}
    props = {**settings, "build_info": "b9000-0c1e570", "model_path": "/home/me/q.gguf"}
    fake = Fake({"/v1/models": MODELS, "/props": props})
    timings = {
        "cache_n": 0,
        "prompt_n": 9,
        "prompt_ms": 3.0,
        "predicted_n": 9,
        "predicted_ms": 90.0,
    }
    drafts = {"draft_n": 8, "draft_n_accepted": 4}
    fake.answer = lambda path, body: said(path, "a", usage=used(9), timings={**timings, **drafts})
    with running(fake) as url:
        outcome = run(url)
        assert outcome.figures["server"]["file"] == "q.gguf"
        assert outcome.figures["server"]["version"] == "b9000-0c1e570"
        found = outcome.figures["families"]["math"]
        assert found["server_decode_tokens_per_s"] == pytest.approx(100)
        assert found["server_prompt_tokens_per_s"] == pytest.approx(3000)
        assert found["accepted_fraction"] == 0.5 and found["cached_tokens"] == 0
        assert found["tokens_per_step"] == 2  # 8 tokens after the first one, in 4 steps
        assert all(body["cache_prompt"] is False for body in fake.seen)
        assert "repeat_penalty" in fake.seen[0] and "repetition_penalty" not in fake.seen[0]
        fake.gets["/metrics"] = lambda: counters("llamacpp", fake.seen)  # as --metrics adds
        assert run(url).figures["families"]["math"]["accepted_by_position"] == [1, 1 / 3]


def test_tabby():
    parameters = {"max_seq_len": 8192, "cache_mode": "Q8", "draft": {"id": "small"}}
    card = {"id": "big", "owned_by": "tabbyAPI", "parameters": parameters}
    fake = Fake({"/v1/models": {"data": [card]}, "/v1/model": card})
    own = {"completion_time": 0.5, "completion_tokens_per_sec": 20.0, "prompt_time": 0.1}
    fake.answer = lambda path, body: [b": ping\r\n\r\n", *said(path, "a", usage=used(10, **own))]
    with running(fake) as url:
        outcome = run(url)
    server, found = outcome.figures["server"], outcome.figures["families"]["essay"]
    assert (server["loaded"], server["draft"], server["cache_mode"]) == ("big", "small", "Q8")
    assert found["server_decode_tokens_per_s"] == 20 and found["server_prompt_tokens_per_s"] == 90
    assert "tokens_per_step" not in found
    assert outcome.warnings == (
        "TabbyAPI: cannot be told to forget a prompt: the second pass may find it cached",
    )


def test_ollama():
    fake = Fake({"/v1/models": MODELS, "/api/version": {"version": "0.40.12"}})
    told = {"eval_count": 8, "eval_duration": 10**8, "prompt_eval_count": 9}
    fake.posts["/api/generate"] = lambda body: {**told, "prompt_eval_duration": 10**7}
    fake.answer = lambda path, body: said(path, "a", usage=used(3))
    with running(fake) as url:
        outcome = run(url)
    server = outcome.figures["server"]
    assert "was not told top_k, min_p, repetition_penalty" in outcome.warnings[0]
    assert server["kind"] == "ollama" and server["version"] == "0.40.12"
    assert server["own_decode_tokens_per_s"] == pytest.approx(80)
    assert server["own_prompt_tokens_per_s"] == pytest.approx(900)
    assert all(body["reasoning_effort"] == "none" for body in fake.seen)


def test_a_server_that_nobody_knows_is_asked_in_plain_words(tmp_path):
    counts = iter(range(100))
    fake = Fake(answer=lambda path, body: said(path, "a", f" {next(counts)}"))
    with running(fake) as url:
        outcome = run(url, greedy=True)
        folder = ROOT / "tr" / "assets" / "tiny"
        counted = run(url, greedy=True, tokenizer=str(folder), nonce=True)
    plain = {"model", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty"}
    asked = {"seed", "stream", "stream_options"}
    assert all(set(body) - {"messages", "prompt"} == plain | asked for body in fake.seen)
    assert outcome.figures["server"]["tokens_counted_by"] == "chunks"
    assert outcome.figures["repeated"] == {"greedy": {"texts": 2, "equal": 0}}
    assert "sampled" not in outcome.figures
    told = " ".join(outcome.warnings)
    for part in (
        "not a server that is known",
        "chunks were counted",
        "second pass may find",
        "2 of 2 greedy texts differ",
    ):
        assert part in told
    assert counted.figures["server"]["tokens_counted_by"] == "params.tokenizer"
    assert counted.figures["families"]["essay"]["prompt_tokens"] > 50
    assert "repeated" not in counted.figures and "cached" not in " ".join(counted.warnings)
    prompts = [body["prompt"] for body in fake.seen if "prompt" in body][-2:]
    assert (
        prompts[0] != prompts[1] and prompts[0].partition(". ")[2] == prompts[1].partition(". ")[2]
    )


def test_what_a_record_warns_of():
    fake = Fake({"/v1/models": MODELS, "/version": {"version": "1"}})
    cached = used(3, prompt_tokens_details={"cached_tokens": 5})
    thought = event({"delta": {"reasoning": "hm"}})
    fake.answer = lambda path, body: [thought, *said(path, usage=cached)]
    with running(fake) as url:
        told = " ".join(run(url).warnings)
        fake.answer = lambda path, body: said(path, usage=used(0))
        empty = run(url)
        whole = {"choices": [{"message": {"content": "ab"}, "text": "ab"}], "usage": used(2)}
        fake.answer, fake.kind = lambda *_: [json.dumps(whole).encode()], "application/json"
        unstreamed = run(url)
    assert "40 tokens of prompts were cached" in told and "began with a thought" in told
    assert "8 of 8 answers were empty" in " ".join(empty.warnings)
    assert "some answers were not streamed" in " ".join(unstreamed.warnings)
    for outcome in (empty, unstreamed):
        found = outcome.figures["families"]["math"]
        assert found["ttft_ms"] is None and found["decode_tokens_per_s"] is None
        assert found["decode_spread_fraction"] is None
    assert unstreamed.figures["families"]["math"]["tokens_per_s"] > 0


def answer(first: float, last: float, seconds: float, **usage: Any) -> Answer:
    pieces = [Piece(first, "a"), Piece(last, "b")]
    ask = Ask("math", 0, Prompt("Why?"), "families")
    reply = Reply(pieces, used(**usage), seconds=seconds)
    return Answer(ask, reply, usage["completion"], usage["prompt"], "usage")


def test_speeds_are_what_a_client_sees():
    details = {"prompt_tokens_details": {"cached_tokens": 20}}
    one = answer(0.5, 1.5, 1.6, completion=101, prompt=100)
    two = answer(0.1, 2.1, 2.4, completion=301, prompt=50, **details)
    found = speeds([one, two])
    assert found["ttft_ms"] == pytest.approx(300)
    assert found["decode_tokens_per_s"] == pytest.approx(400 / 3)  # from the second token on
    assert found["tokens_per_s"] == pytest.approx(402 / 4)
    assert found["prompt_tokens_per_s"] == pytest.approx(130 / 0.6)  # those that were read
    assert found["answer_tokens"] == 402 and found["cached_tokens"] == 20


def test_times_are_the_clients_own():
    fake = Fake({"/v1/models": MODELS, "/version": {"version": "1"}})
    slow = [0.05, *(piece for text in "abcde" for piece in (event({"text": text}), 0.02))]
    fake.answer = lambda path, body: [*slow, *said("", usage=used(5))]
    with running(fake) as url:
        found = run(url, greedy=True, warmup=0).figures["families"]["essay"]
    assert 50 <= found["ttft_ms"] and 50 <= min(found["ttft_by_pass_ms"])
    assert 0 < found["decode_tokens_per_s"] <= 4 / 0.08
    low, high = sorted(found["decode_by_pass_tokens_per_s"])
    assert found["decode_spread_fraction"] == pytest.approx(2 * (high - low) / (high + low))
    assert found["tokens_per_s"] <= 5 / 0.15


def test_counters_are_those_of_the_run():
    before, after = Drafted(10, 30, 20, (12, 8)), Drafted(16, 50, 31, (16, 12, 3))
    assert after.since(before) == Drafted(6, 20, 11, (4, 4, 3))
    assert before.plus(after) == Drafted(26, 80, 51, (28, 20, 3))


@pytest.mark.parametrize(
    "params, message",
    [
        ({"nonce": True}, "params.nonce needs params.server"),
        ({"thinking": True}, "params.thinking needs params.server"),
        ({"prompts": -1}, "must be 0 or more"),
        ({"server": "localhost"}, "expected http://HOST:PORT, got 'localhost'"),
        ({"server": "http://a", "key_env": "NO_SUCH"}, "NO_SUCH: this environment variable"),
        ({"tokens": 3}, "unknown key of run=rivals"),
    ],
)
def test_mistakes_are_named(monkeypatch, params, message):
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(ValueError, match=message):
        run("", **params)


def test_a_bias_of_one_tokenizer_is_refused():
    config = replace(base(), sampling=Sampling(temperature=0.8, logit_bias={3: 1.0}))
    with pytest.raises(ValueError, match="sampling.logit_bias"):
        rivals.run(config)


@pytest.mark.parametrize(
    "kind, names",
    [
        ("vLLM", []),
        ("llama-cpp-python", ["ignore_eos"]),
        ("ollama", ["ignore_eos", "top_k", "min_p", "repetition_penalty"]),
        ("unknown", ["ignore_eos", "top_k", "min_p", "repetition_penalty"]),
    ],
)
def test_what_a_server_has_no_word_for(kind, names):
    assert rival_servers.unheard(kind, sampled=True, ignore_eos=True) == names
    assert rival_servers.unheard(kind, sampled=False, ignore_eos=False) == []
    told = rival_servers.fields(kind, Sampling(temperature=0.8), False, True)
    assert not set(names) & set(told) and ("ignore_eos" in told) == (kind == "vLLM")


def test_a_key_is_sent_and_not_recorded(monkeypatch):
    monkeypatch.setenv("RIVAL_KEY", "secret")
    fake = Fake({"/v1/models": MODELS}, lambda path, body: said(path, "a", usage=used(1)))
    with running(fake) as url:
        outcome = run(url, key_env="RIVAL_KEY")
    assert {head["authorization"] for head in fake.heads} == {"Bearer secret"}
    assert "secret" not in json.dumps(outcome.figures)


def test_flags_and_addresses_as_they_are_typed():
    flags = "--spec-type draft-mtp -ngl 99 --threads=2"
    args = ["+exp=rivals", "params.server=http://127.0.0.1:8080/v1", f"params.flags='{flags}'"]
    options = load(args).options(rivals.Options)
    assert options.flags == flags and options.server == "http://127.0.0.1:8080/v1"


def test_our_own_server(tmp_path):
    """Started by the run: every text is the one that the engine writes without HTTP."""
    record = record_of(tmp_path, "+exp=rivals", *SMALL, "prompts=mixed")
    verdict, figures = record["verdict"], record["figures"]
    assert verdict == {"exact": True, "compared_tokens": 4 * 8, "first_divergence": None}
    assert figures["server"]["kind"] == "tr" and not record["warnings"]
    for place in ("families", "sampled"):
        found, direct = figures[place]["mixed"], figures["direct"][place]["mixed"]
        assert found["answer_tokens"] == 16 and found["cached_tokens"] == 0
        assert found["tokens_per_step"] > 1 and found["ttft_ms"] > 0
        assert direct["decode_tokens_per_s"] > 0
    assert figures["repeated"]["greedy"] == {"texts": 1, "equal": 1}


def test_another_text_is_no_exact_run():
    one = answer(0.5, 1.5, 1.6, completion=2, prompt=3)
    m = Measured("tr", Found("tr"), "tr", passes=[[one], [one]])
    assert rivals.compare(m, ["ab"]).exact
    verdict = rivals.compare(m, ["axe"])
    assert not verdict.exact and verdict.compared_tokens == 4
    where = {"family": "math", "prompt": 0, "mode": "greedy", "pass": 1, "position": 1}
    assert verdict.first_divergence == {**where, "server": "b", "direct": "xe"}


def test_our_own_server_cannot_start(tmp_path):
    config = load(["+exp=rivals", *SMALL, "weights=checkpoint", f"weights.path={tmp_path}"])
    here, there = multiprocessing.Pipe()
    rivals.serve(config, 1, there)
    with pytest.raises((ValueError, FileNotFoundError), match=str(tmp_path)):
        raise here.recv()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """llama.cpp's server of its Python package, over a tiny file of random weights."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs pip install 'llama-cpp-python[server]', which compiles llama.cpp")
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    write(path)
    log = path.with_suffix(".log")
    options = ["--model", path, "--model_alias", "tiny", "--n_ctx", 2048, "--n_threads", 1]
    command = [sys.executable, "-m", "llama_cpp.server", "--port", 0, "--chat_format", "chatml"]
    words = [str(word) for word in (*command, *options)]
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=file)
    try:
        until(lambda: "Uvicorn running on " in log.read_text("utf-8") or process.poll(), 120)
        assert process.poll() is None, log.read_text("utf-8")
        yield log.read_text("utf-8").partition("Uvicorn running on ")[2].split()[0]
    finally:
        process.kill()
        process.wait(10)


def test_llama_cpp(llama):
    outcome = run(llama, greedy=True)
    figures = outcome.figures
    assert figures["server"]["kind"] == "llama-cpp-python" and figures["server"]["version"]
    assert figures["server"]["model"] == "tiny"
    assert figures["server"]["tokens_counted_by"] == "the server's tokenizer"
    found = figures["families"]["essay"]
    assert found["ttft_ms"] > 0 and found["decode_tokens_per_s"] > 0
    assert found["prompt_tokens"] > 100 and found["answer_tokens"] > 0
    assert figures["repeated"]["greedy"]["equal"] == 2
    assert "tells no token counts" in " ".join(outcome.warnings)
