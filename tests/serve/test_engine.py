"""Submit, events, text: what the engine's thread does with every field of a request."""

import json
import threading
from dataclasses import replace

import pytest
import torch

from tests.decode.embedded import CAPACITY, CASES, draft, model, tokenizer
from tests.serve.listening import WAIT, Listener, ask, chat, running, sessions
from tr.decode.generate import generate
from tr.decode.words import Words
from tr.model.sampling import sampling
from tr.serve.engine import Closed, QueueFull, safe
from tr.serve.events import CallClosed, Reasoning
from tr.serve.job import (
    Constraint,
    Failed,
    Finished,
    Progress,
    PromptLogprobs,
    Request,
    Settings,
    Started,
    Tool,
)
from tr.tree import unchecked

HEAT = Settings(temperature=0.8, top_k=40, top_p=0.95, seed=3)
TOKENS = 24
SMALL = {
    "type": "object",
    "properties": {
        "a": {"enum": ["x", "yy"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["a", "n"],
    "additionalProperties": False,
}
TOOL = Tool("f", {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}})
DRAFTS = ("raw", "dflash2")


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@pytest.fixture(scope="module")
def engine():
    with running() as engine:
        yield engine


@pytest.fixture(scope="module")
def undrafted():
    with running("raw") as engine:
        yield engine


@pytest.fixture(params=DRAFTS)
def each(request, engine, undrafted):
    return engine if request.param == "dflash2" else undrafted


def plain(settings: Settings, tokens: int = TOKENS, eos=(), prompt=None) -> list[int]:
    s = sampling(settings.temperature, settings.top_k, settings.top_p, seed=settings.seed)
    m = replace(model(), chunk=64)
    return generate(m, draft("raw", CASES[0]), prompt or CASES[2].prompt, s, tokens, eos).tokens


@pytest.mark.parametrize("settings", [Settings(), HEAT], ids=["greedy", "heat"])
def test_the_text_is_that_of_generate(each, settings):
    prompt, wanted = CASES[2].prompt, plain(settings)
    got = ask(each, Request(prompt, TOKENS, settings, raw=True))
    assert got.ids == wanted and got.text == tokenizer().decode(wanted, special=False)
    usage = got.end.usage
    assert (usage.prompt, usage.completion) == (len(prompt), TOKENS)
    started = got.events[0]
    assert isinstance(started, Started) and started.reused == usage.reused
    assert started.reused + started.computed == len(prompt)
    read = [e.read for e in got.events if isinstance(e, Progress)]
    assert read == sorted(read) and (not read or read[-1] == len(prompt))
    assert usage.steps + 1 + usage.accepted >= TOKENS
    for use in usage.drafts:
        assert sum(use.accepted) == usage.accepted and len(use.accepted) == len(use.proposed)
    assert got.end.reason == "length"


def test_a_stop_string_ends_text_ids_and_state(each):
    prompt, whole = CASES[2].prompt, plain(HEAT)
    text = tokenizer().decode(whole, special=False)
    stop = text[len(text) // 2 :][:4]
    words = Words(tokenizer().detokenizer(special=False), [stop])
    kept = whole[: next(i for i, t in enumerate(whole) if words.push(t)) + 1]
    got = ask(each, Request(prompt, TOKENS, HEAT, stop=["never", stop], raw=True))
    assert (got.end.reason, got.end.stop) == ("string", stop)
    assert got.ids == kept and got.text == text[: text.index(stop)]
    again = ask(each, Request([*prompt, *kept, 5], 1, HEAT, raw=True))
    assert again.end.usage.reused == len(prompt) + len(kept) - 1


def test_a_grammar_gives_raw_decoding_s_text_and_valid_json():
    found = []
    for name in DRAFTS:
        with running(name) as engine:
            asked = [
                Request(CASES[0].prompt, 60, s, constraint=Constraint("json_schema", SMALL))
                for s in (Settings(), HEAT)
            ]
            answers = [ask(engine, r) for r in asked]
            found.append([(a.ids, a.text, a.end.reason) for a in answers])
            for a in answers:
                value = json.loads(a.text)
                assert set(value) == {"a", "n"} and a.end.reason == "stop"
                assert value["a"] in ("x", "yy") and 0 <= value["n"] <= 99
    assert found[0] == found[1]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_call_is_forced_behind_a_bounded_thought(thinking):
    request = Request(
        chat("Call f.", thinking),
        120,
        HEAT,
        tools=[TOOL],
        constraint=Constraint("tools", forced="f"),
        thinking=thinking,
        thinking_budget=9 if thinking else None,
    )
    found = []
    for name in DRAFTS:
        with running(name) as engine:
            got = ask(engine, request)
            closed = [e for u in got.updates for e in u.events if isinstance(e, CallClosed)]
            assert got.end.reason == "tool_calls" and len(closed) == 1
            assert set(json.loads(closed[0].arguments)) <= {"n"}
            found.append(got.ids)
    assert found[0] == found[1]
    closing = tokenizer().encode("\n</think>\n\n", special=True)
    if thinking and tokenizer().control["</think>"] not in found[0][:10]:
        assert found[0][9 : 9 + len(closing)] == closing


def test_a_thought_has_its_budget(engine):
    ids, mark = chat("Why?", thinking=True), tokenizer().control["</think>"]
    settings = replace(HEAT, logit_bias={mark: -100.0})
    free = ask(engine, Request(ids, 20, settings, thinking=True, ignore_eos=True)).ids
    for budget in (0, 7):
        got = ask(
            engine,
            Request(ids, 20, settings, thinking=True, thinking_budget=budget, ignore_eos=True),
        )
        at = got.ids.index(mark)
        assert got.ids[:budget] == free[:budget] and at in (budget, budget + 1)
        assert got.end.usage.reasoning == at + 1
        thought = "".join(e.text for u in got.updates for e in u.events if isinstance(e, Reasoning))
        assert thought.strip() == tokenizer().decode(free[:budget]).strip()


def test_end_tokens(each):
    prompt, end = CASES[2].prompt, tokenizer().eos[0]
    soon = replace(HEAT, logit_bias={end: 100.0})
    for least, count in ((0, 1), (1, 2), (6, 7)):
        got = ask(each, Request(prompt, 20, soon, min_tokens=least, raw=True))
        assert got.ids.index(end) == least and len(got.ids) == count
        assert got.end.reason == "stop" and got.end.usage.completion == count
    got = ask(each, Request(prompt, 5, soon, ignore_eos=True))
    assert got.ids == [end] * 5 and got.end.reason == "length"


def test_min_tokens_holds_for_stop_strings(engine):
    text = tokenizer().decode(plain(HEAT), special=False)
    first = text[0]
    got = ask(engine, Request(CASES[2].prompt, TOKENS, HEAT, stop=[first], min_tokens=9, raw=True))
    assert len(got.ids) >= 9 and got.text.startswith(first)


def test_logarithms_come_with_every_token(engine):
    got = ask(engine, Request(CASES[2].prompt, TOKENS, HEAT, logprobs=3, raw=True))
    assert [p.id for p in got.logprobs] == got.ids and len(got.ids) == TOKENS
    assert all(len(p.top) == 3 and p.logprob <= p.top[0][1] for p in got.logprobs)
    bare = ask(engine, Request(CASES[2].prompt, TOKENS, HEAT, logprobs=0, raw=True))
    assert [replace(p, top=()) for p in got.logprobs] == bare.logprobs


def test_a_prompt_is_told_and_not_answered(engine):
    prompt = CASES[0].prompt
    got = ask(engine, Request(prompt, 0, prompt_logprobs=2))
    (told,) = [e.logprobs for e in got.wait().events if isinstance(e, PromptLogprobs)]
    assert told[0] is None and [p.id for p in told[1:] if p] == list(prompt[1:])
    assert not got.updates and got.end.usage.completion == 0 and got.end.reason == "length"
    assert ask(engine, Request(prompt, 4)).end.usage.reused == len(prompt)


def test_a_full_window_ends_the_answer(engine):
    prompt = (CASES[0].prompt * 50)[: CAPACITY - 4]
    got = ask(engine, Request(prompt, 100, HEAT, raw=True, ignore_eos=True))
    assert got.end.reason == "window" and len(got.ids) == 5


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"ids": ()}, "ids: expected at least 1"),
        ({"ids": (1, 545)}, "ids: expected 0 .. 544, got 545"),
        ({"ids": (1,) * (CAPACITY + 1)}, "ids: 1025 tokens exceed the window of 1024"),
        ({"max_tokens": -1}, "max_tokens: expected at least 0"),
        ({"min_tokens": 9}, "min_tokens: expected 0 .. 4, got 9"),
        ({"logprobs": 21}, "logprobs: expected 0 .. 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"marks": (3,)}, "marks: expected 0 .. 2, got 3"),
        ({"stop": ("a", "")}, "stop: "),
        ({"settings": Settings(temperature=-1)}, "sampling.temperature"),
        ({"settings": Settings(logit_bias={545: 1.0})}, "sampling.logit_bias"),
        ({"constraint": Constraint("json_schema", {"not": {}})}, "constraint: .*not"),
        ({"constraint": Constraint("tools", required=True)}, "constraint: there is no tool"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(engine, wrong, message):
    with pytest.raises(ValueError, match=message):
        engine.submit(replace(Request((1, 2), 4), **wrong), Listener())
    assert engine.state().queued == 0


def test_a_job_is_cancelled_in_every_phase():
    prompt = (CASES[0].prompt * 9)[:300]
    with running() as engine:
        first, second = Listener(lambda e: isinstance(e, Progress) and e.read == 192), Listener()
        job = engine.submit(Request(prompt, 5, HEAT), first)
        other = engine.submit(Request(prompt, 5, HEAT), second)
        assert first.held.wait(WAIT) and (job.phase, other.phase) == ("prefill", "queued")
        assert engine.state().phase == "prefill" and engine.state().queued == 1
        other.cancel()
        assert second.end.reason == "cancelled" and len(second.events) == 1
        job.cancel()
        first.release.set()
        assert first.end.reason == "cancelled" and job.phase == "done"
        assert [e.read for e in first.events if isinstance(e, Progress)] == [64, 128, 192]
        third = Listener(lambda e: len(third.events) > 5)
        job = engine.submit(Request(prompt, 200, HEAT, raw=True, ignore_eos=True), third)
        assert third.held.wait(WAIT) and job.phase == "decode"
        job.cancel()
        job.cancel()
        third.release.set()
        assert third.end.reason == "cancelled" and third.end.usage.reused == 192
        whole = plain(HEAT, 60, prompt=prompt)
        assert third.ids == whole[: len(third.ids)] and len(third.ids) < 60
        after = ask(engine, Request([*prompt, *third.ids, 7], 3, HEAT))
        assert after.end.usage.reused == len(prompt) + len(third.ids) - 1
        state = engine.state()
        assert (state.cancelled, state.served, state.failed) == (3, 1, 0)


def test_the_queue_is_bounded_and_has_two_lanes():
    order: list[str] = []

    def listen(name: str) -> Listener:
        return Listener(lambda e: bool(isinstance(e, Started) and order.append(name)))

    with running("raw", waiting=9) as engine:
        gate = Listener(lambda e: isinstance(e, Started))
        engine.submit(Request((1, 2), 1), gate)
        assert gate.held.wait(WAIT)
        waiting = []
        for name, side in [("a", False), ("b", False), *((f"s{i}", True) for i in range(7))]:
            waiting.append(listen(name))
            engine.submit(Request((1, 2), 1, side=side), waiting[-1])
        with pytest.raises(QueueFull, match="9 requests wait"):
            engine.submit(Request((1, 2), 1), Listener())
        assert engine.state().queued == 9
        gate.release.set()
        for one in waiting:
            assert one.end.reason in ("length", "stop")
    assert order == ["s0", "s1", "s2", "s3", "a", "s4", "s5", "s6", "b"]


def test_a_job_that_fails_costs_itself_alone(monkeypatch):
    prompt, held = CASES[2].prompt, sessions("dflash2")
    with running() as engine:
        first = ask(engine, Request(prompt, TOKENS, HEAT, raw=True))
        assert first.ids == plain(HEAT)
        launch = type(held.open(prompt, sampling()).stream).launch

        def broken(stream, *args):
            launch(stream, *args)
            raise RuntimeError("/home/someone/secret.py broke")

        monkeypatch.setattr("tr.decode.stream.Stream.launch", broken)
        failed = ask(engine, Request(prompt, TOKENS, HEAT))
        assert failed.wait().events[-1] == Failed("internal error (RuntimeError)")
        monkeypatch.undo()
        again = ask(engine, Request(prompt, TOKENS, HEAT, raw=True))
        assert again.ids == first.ids and again.end.usage.reused == len(prompt)
        assert engine.alive and engine.state().failed == 1

        def gone(event):
            raise RuntimeError("the loop is closed")

        job = engine.submit(Request(prompt, 500, HEAT, ignore_eos=True), gone)
        assert ask(engine, Request(prompt, TOKENS, HEAT, raw=True)).ids == first.ids
        assert job.phase == "done" and engine.alive


def test_a_dead_thread_tells_everyone(monkeypatch):
    def broken(*args, **named):
        raise RuntimeError("the device is gone")

    with running("raw") as engine:
        gate = Listener(lambda e: isinstance(e, Started))
        engine.submit(Request(CASES[0].prompt, 5), gate)
        assert gate.held.wait(WAIT)
        waiting = ask(engine, Request((1, 2), 5))
        monkeypatch.setattr(sessions("raw"), "drop", broken)
        monkeypatch.setattr("tr.decode.session.begin", broken)
        gate.release.set()
        for one in (gate, waiting):
            assert one.wait().events[-1] == Failed("the engine stopped")
        engine._thread.join(WAIT)
        assert not engine.alive
        with pytest.raises(Closed):
            engine.submit(Request((1, 2), 5), Listener())
        monkeypatch.undo()
        sessions("raw").drop()


@pytest.mark.parametrize("finish", [False, True])
def test_closing_leaves_nobody_waiting(finish):
    with running("raw") as engine:
        gate, waiting = Listener(lambda e: isinstance(e, Started)), Listener()
        engine.submit(Request(CASES[0].prompt, 5, ignore_eos=True), gate)
        assert gate.held.wait(WAIT)
        engine.submit(Request((1, 2), 5), waiting)
        closing = threading.Thread(target=engine.close, args=(WAIT, finish))
        closing.start()
        assert waiting.end == Finished("cancelled", waiting.end.usage)
        gate.release.set()
        closing.join(WAIT)
        assert gate.end.reason == ("length" if finish else "cancelled")
        assert not engine.alive
        with pytest.raises(Closed):
            engine.submit(Request((1, 2), 5), Listener())


def test_main_and_title_requests_keep_each_other_s_text():
    """Ten turns of a conversation, each after a title request over another system prompt."""
    chunk = 64
    with running() as engine:
        main, title, texts = list(CASES[0].prompt)[:100], list(CASES[4].prompt)[:70], []
        for turn in range(10):
            side = [*title, *range(20 + turn, 40 + turn)]
            asked = Request(side, 2, HEAT, marks=(len(title),), side=True, ignore_eos=True)
            end = ask(engine, asked).end
            assert end.usage.prompt - end.usage.reused <= (20 if turn else len(side)) + chunk
            new = list(range(100 + turn, 112 + turn))
            known = len(main) if turn else 0
            main += new
            got = ask(engine, Request(main, 3, HEAT, ignore_eos=True))
            computed = len(main) - got.end.usage.reused
            assert computed <= (len(main) - known if turn else len(main)) + chunk
            texts.append((list(main), got.ids))
            main += got.ids
        assert engine.state().conversations >= 2
    with running() as engine:  # nothing in between, so that nothing is ever put back
        for ids, answer in texts:
            assert ask(engine, Request(ids, 3, HEAT, ignore_eos=True)).ids == answer


def test_forgetting():
    with running("raw") as engine:
        prompt = CASES[0].prompt
        ask(engine, Request(prompt, 2)).wait()
        assert engine.state().conversations == 1 and engine.state().held_bytes > 0
        engine.forget()
        assert ask(engine, Request(prompt, 2)).end.usage.reused == 0
        state = engine.state()
        assert state.beat < WAIT and state.phase == "idle" and state.context == len(prompt) + 2


def test_a_failure_shows_no_path():
    assert safe(ValueError("bad at /usr/lib/x.py:3: no\nC:\\a\\b")) == "bad at ...:3: no ..."
    assert safe(KeyError("/secret/path")) == "internal error (KeyError)"
    assert safe(torch.OutOfMemoryError("x")) == "the device is out of memory"
