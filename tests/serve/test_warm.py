"""What is run before the first request, and how the beginning of a prompt was known."""

import threading

import pytest

from tests.decode.embedded import CASES, tokenizer
from tests.serve.listening import Listener, ask, running, sessions, until
from tr.serve import engine as engines
from tr.serve.engine import WARMING, Engine
from tr.serve.job import Request, Settings
from tr.serve.warm import warm
from tr.tree import unchecked

HEAT = Settings(temperature=0.8, top_k=40)


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


def test_each_kind_of_settings_runs_every_program(monkeypatch):
    """Two greedy settings are one kind; a conversation that was warmed leaves nothing."""
    held = sessions("dflash2")
    ran, step = [], type(held.model).step

    def watched(model, draft, state, sampling, rows):
        ran.append((sampling.greedy, draft, rows))
        return step(model, draft, state, sampling, rows)

    monkeypatch.setattr(type(held.model), "step", watched)
    warm(held, [Settings(), Settings(seed=7), HEAT])
    for greedy in (True, False):
        rows = {(draft, n) for kind, draft, n in ran if kind == greedy}
        assert rows >= {(program, program.rows) for program in held.draft.programs}
    assert not held.held.all
    ran.clear()
    warm(held, [Settings()], goes_on=lambda: False)
    assert not ran


def test_requests_wait_for_it_and_are_the_same(monkeypatch):
    gate, asked = threading.Event(), Request(CASES[0].prompt, 8, raw=True)
    with running("dflash2") as plain:
        wanted = ask(plain, asked).ids

    def slow(*args):
        assert gate.wait(20)
        warm(*args)

    monkeypatch.setattr(engines, "warm", slow)
    engine, listener = Engine(sessions("dflash2"), tokenizer(), [0], warmed=[HEAT]), Listener()
    try:
        engine.submit(asked, listener)
        assert engine.state().phase == WARMING and not listener.events
        gate.set()
        assert listener.over.wait(20)
        assert listener.ids == wanted and listener.end.usage.found == "miss"
        until(lambda: engine.state().phase == "idle")
    finally:
        gate.set()
        engine.close()


def test_how_a_beginning_was_known():
    first, other = CASES[0].prompt, CASES[1].prompt
    with running("raw") as engine:
        begun = ask(engine, Request(first, 4, raw=True))
        longer = [*first, *begun.ids, 5, 6]
        found = [begun.end.usage.found]
        for prompt in (longer, first, other, longer):
            found.append(ask(engine, Request(prompt, 4, raw=True)).end.usage.found)
    assert found == ["miss", "append", "snapshot", "miss", "host"]
