"""A turn that is taken up again equals one that never paused, to the bit: tokens, steps, state."""

import dataclasses
import functools
from collections.abc import Sequence
from random import Random

import pytest
import torch

from tests.decode.small import DRAFT, IDS, dflash2_draft, model, mtp_draft
from tests.model.small import copy, random_tokens
from tr.assemble import cached
from tr.decode import snapshot
from tr.decode.porter import Porter
from tr.decode.session import Sessions, Turn
from tr.decode.snapshot import caches, parts, put_rows, restore, take, take_rows
from tr.decode.step import Model, State, init_state, prefill
from tr.decode.stream import Counts, Stream, advance, begun, open_stream
from tr.drafts.base import Draft
from tr.drafts.dflash2 import ring_rows
from tr.drafts.lookup import Lookup
from tr.drafts.raw import Raw
from tr.model import text
from tr.model.sampling import Sampling, sampling
from tr.tree import unchecked

CAPACITY, ROOM = 512, 1 << 28
GREEDY, HEAT = sampling(), sampling(0.8, seed=7)
RESIDUES = (0, 1, 4, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127)  # of a prompt's length modulo 128
WINDOW, RING = DRAFT.window, ring_rows(DRAFT, DRAFT.window)


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


def target(kv: str = "bf16", chunk: int = 512) -> Model:
    return dataclasses.replace(_target(kv), chunk=chunk)


@functools.cache
def _target(kv: str) -> Model:
    m = model()
    return dataclasses.replace(m, params=cached(m.params, kv))


def draft(name: str, kv: str = "bf16") -> Draft:
    return _draft(name, kv)


@functools.cache
def _draft(name: str, kv: str) -> Draft:
    m = target(kv)
    made = {"raw": Raw, "lookup": lambda: Lookup(7, 1, 3)}
    made |= {"mtp": lambda: mtp_draft(m, 3), "dflash2": lambda: dflash2_draft(m)}
    return made[name]()


def tokens(count: int, seed: int) -> list[int]:
    return random_tokens(count, seed=seed).clamp(max=IDS - 1).tolist()


def sessions(name: str = "dflash2", kv: str = "bf16", chunk: int = 512, **named) -> Sessions:
    budget = named.pop("budget", ROOM)
    return Sessions(target(kv, chunk), draft(name, kv), CAPACITY, budget, **named)


def say(turn: Turn, count: int) -> tuple[list[int], list[int]]:
    """The tokens of an answer and how many each step kept."""
    counts = Counts()
    made = [t for ts in turn.answer(counts, count) for t in ts]
    assert made == counts.tokens
    return made, counts.kept


class Plain:
    """A conversation that nothing else interrupts: turns and steps on a state of its own."""

    def __init__(
        self,
        m: Model,
        draft: Draft,
        s: Sampling,
        state: State | None = None,
        capacity: int = CAPACITY,
    ) -> None:
        self.m, self.draft, self.s = m, draft, s
        with torch.inference_mode():
            self.state = state or init_state(m, draft, capacity)

    def hear(self, new: Sequence[int], strict: bool = False) -> "Plain":
        with torch.inference_mode():
            given = torch.tensor(list(new), device=self.s.seed.device)
            self.state = prefill(
                self.m, self.draft, self.state, given, self.s, strict, turn=not strict
            )
        return self

    def say(self, count: int) -> tuple[list[int], list[int]]:
        stream, counts = begun(self.m, self.draft, self.s, self.state), Counts()
        made = [int(self.state.feed.anchor)]
        made += [t for ts in advance(stream, counts, count - 1) for t in ts]
        self.state = stream.state
        return made, counts.kept

    def copy(self) -> "Plain":
        return Plain(self.m, self.draft, self.s, copy(self.state))


def assert_same_state(got: State, want: State) -> None:
    """All that a further step or prompt reads, to the bit."""
    pos, count = int(want.feed.pos), int(want.feed.count)
    scalars = ("feed.pos", "feed.count", "feed.anchor", "prompt", "target.pos", "target.pending")
    for name in scalars:
        a, b = (functools.reduce(getattr, name.split("."), s) for s in (got, want))
        assert int(a) == int(b), name
    one, two = (parts(s, pos, int(want.target.pending), count) for s in (got, want))
    assert one.keys() == two.keys()
    for name, x in two.items():
        if ".ring[" in name:  # a draft's window; rows further back are never seen again
            slots = torch.arange(max(0, pos - WINDOW + 1), pos - count, device=x.device) % RING
            assert torch.equal(one[name][:, :, slots], x[:, :, slots]), name
        elif not name.rpartition(".")[2].isdigit():  # what a cache has beside its rows: read below
            assert torch.equal(one[name], x), name
    for a, b in zip(caches(got), caches(want), strict=True):
        for x, y in zip(a.read(pos, torch.float32), b.read(pos, torch.float32), strict=True):
            assert torch.equal(x, y)
    assert torch.equal(got.feed.history[: pos + 1], want.feed.history[: pos + 1])


@pytest.mark.parametrize("name, kv", [("mtp", "fp8"), ("dflash2", "kvarn"), ("lookup", "int8")])
def test_a_resumed_turn_equals_one_that_never_paused(name, kv):
    held = sessions(name, kv)
    for n, residue in enumerate(RESIDUES):
        s = (GREEDY, HEAT)[n % 2]
        first, second = tokens(residue or 128, residue), tokens(1 + n, 100 + n)
        plain = Plain(target(kv), draft(name, kv), s)
        answer, kept = plain.hear(first).say(4)
        turn = held.open(first, s)
        assert say(turn, 4) == (answer, kept)
        held.open(tokens(30 + 20 * n, 200 + n), HEAT)
        turn = held.open(first + answer + second, s)
        assert (turn.reused, turn.computed) == (len(first) + 3, 1 + len(second))
        plain.hear(answer[-1:] + second)
        assert_same_state(turn.stream.state, plain.state)
        assert say(turn, 3) == plain.say(3)
        assert_same_state(turn.stream.state, plain.state)


@pytest.mark.parametrize("name, kv", [("mtp", "kvarn"), ("dflash2", "bf16")])
def test_strict_a_resumed_prompt_equals_a_cold_one(name, kv):
    m, d = target(kv, 64), draft(name, kv)
    held = sessions(name, kv, 64, strict=True)
    for n, residue in enumerate(RESIDUES[n] for n in (0, 1, 3, 6, 9, 12)):
        s, ids = (GREEDY, HEAT)[n % 2], tokens(140, n) + tokens(residue, 50 + n)
        answer, _ = say(held.open(ids[:140], s), 4)
        held.open(tokens(150, 70 + n), s)
        turn = held.open(ids[:140] + answer + ids[140:], s)
        assert turn.reused == 128 and turn.computed == 12 + 4 + residue
        cold = Plain(m, d, s).hear(ids[:140] + answer + ids[140:], strict=True)
        assert_same_state(turn.stream.state, cold.state)
        assert say(turn, 3) == cold.say(3)


@pytest.mark.parametrize("new", [3, 70])  # as rows and by prefill
@pytest.mark.parametrize("name", ["mtp", "dflash2"])
def test_a_draft_knows_what_steps_wrote_before_a_prompt_went_on(name, new):
    """Its state behind the second prompt is that of reading all of it at once, but for rounding."""
    m, d = target(), draft(name)
    plain = Plain(m, d, HEAT)
    answer, _ = plain.hear(tokens(20, 1)).say(12)
    whole = tokens(20, 1) + answer + tokens(new, 2)
    plain.hear(answer[-1:] + tokens(new, 2))
    cold = Plain(m, d, HEAT).hear(whole)
    pos = len(whole)
    if name == "mtp":
        got, want = (s.draft.cache.k[:, :pos] for s in (plain.state, cold.state))
    else:
        slots = torch.arange(pos - WINDOW + 1, pos) % RING
        got, want = (s.draft.ring[1].k[:, :, slots] for s in (plain.state, cold.state))
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


def test_a_branch_goes_on_from_the_last_mark_before_it():
    held, s = sessions(), HEAT
    prompt, other = tokens(100, 1), tokens(12, 2)
    marks = (40, 77)
    answer, _ = say(held.open(prompt, s, marks), 9)
    base = Plain(target(), draft("dflash2"), s).hear(prompt[:40])
    edited = prompt[:50] + other
    turn = held.open(edited, s)
    assert (turn.reused, turn.computed) == (40, 22)
    plain = base.copy().hear(edited[40:])
    assert_same_state(turn.stream.state, plain.state)
    assert say(turn, 9) == plain.say(9)
    for at, ids in ((77, prompt[:80] + other), (100, prompt + answer[:3] + other), (100, prompt)):
        turn = held.open(ids, s)
        assert turn.reused == at
        if ids == prompt:
            assert turn.computed == 0 and say(turn, 9)[0] == answer
    turn = held.open(prompt + answer + other, s)  # the branches left the first one whole
    assert turn.reused == 108
    plain = base.hear(prompt[40:77]).hear(prompt[77:])
    assert plain.say(9)[0] == answer
    assert say(turn, 5) == plain.hear(answer[-1:] + other).say(5)


def test_a_long_prompt_keeps_places_in_between():
    held = sessions(every=64)
    prompt = tokens(300, 1)
    say(held.open(prompt, GREEDY), 2)
    for length, reused in ((63, 0), (64, 64), (65, 64), (200, 192), (299, 256), (300, 300)):
        assert held.open(prompt[:length], GREEDY).reused == reused
        assert held.open(prompt[:length] + [5], GREEDY).reused >= reused


@pytest.mark.parametrize("name, kv", [("mtp", "bf16"), ("dflash2", "kvarn"), ("raw", "int8")])
def test_any_order_of_turns_and_branches(name, kv, monkeypatch):
    """Four texts, each with a turn or a branch at its end, in random order."""
    monkeypatch.setattr(snapshot, "BLOCK", 128)
    random, held, made = Random(0), sessions(name, kv), []
    for n in range(16):
        s, new = HEAT, tokens(random.randint(1, 200), 300 + n)
        if len(made) < 4 or random.random() < 0.2:
            ids, plain = [], Plain(target(kv), draft(name, kv), s)
        else:
            ids, plain = random.choice(made[-6:])
            plain = plain.copy()
        if len(ids) + len(new) > CAPACITY - 20:
            continue
        turn = held.open(ids + new, s)
        assert turn.reused == max(0, len(ids) - 1)
        plain.hear(ids[-1:] + new)
        answer, kept = plain.say(random.randint(1, 4))
        assert say(turn, len(answer)) == (answer, kept), n
        assert_same_state(turn.stream.state, plain.state)
        made.append((ids + new + answer, plain))


@pytest.mark.parametrize("kv", ["bf16", "kvarn"])
def test_a_state_comes_back_whatever_was_read_since(kv):
    """Also what a format forgets as a text goes on, and in the middle of an answer."""
    plain = Plain(target(kv), draft("dflash2", kv), HEAT).hear(tokens(140, 1))
    plain.say(5)
    before, porter = plain.copy(), Porter(torch.device("cpu"))
    with torch.inference_mode():
        held, pos = take(porter, plain.state), 144
        plain.hear(tokens(300, 2))
        restore(plain.state, held, before.state.feed.history[:pos].clone())
    assert_same_state(plain.state, before.state)
    assert plain.say(20) == before.say(20)


def test_pieces_that_share_a_tile_come_back_together():
    plain = Plain(target("kvarn"), draft("raw", "kvarn"), HEAT).hear(tokens(300, 1))
    porter, state = Porter(torch.device("cpu")), plain.state
    with torch.inference_mode():
        pieces = [*take_rows(porter, state, 0, 140), *take_rows(porter, state, 140, 300)]
        for start, stop, put in (
            (0, 9, (0, 384)),
            (256, 384, (140, 384)),
            (384, 512, (384, 512)),
            (9, 0, (9, 9)),
        ):
            assert put_rows(state, pieces, start, stop) == put


@pytest.mark.parametrize("fails", [False, True])
def test_rows_that_an_answer_overwrote_come_back(fails, monkeypatch):
    monkeypatch.setattr(snapshot, "BLOCK", 128)
    held, prompt = sessions("raw"), tokens(200, 1)
    plain = Plain(target(), draft("raw"), HEAT).hear(prompt)
    answer, _ = plain.say(3)
    assert say(held.open(prompt, HEAT), 3)[0] == answer
    steps = held.open(tokens(110, 2), HEAT).answer(Counts(), 30)
    for _ in range(22):
        next(steps)
    if fails:
        with pytest.raises(RuntimeError, match="broken"):
            steps.throw(RuntimeError("broken"))
    turn = held.open(prompt + answer + [3], HEAT)
    assert turn.reused == 202
    assert_same_state(turn.stream.state, plain.hear([answer[-1], 3]).state)


def test_a_side_request_costs_the_rows_that_it_overwrote(monkeypatch):
    monkeypatch.setattr(snapshot, "BLOCK", 128)
    held = sessions("mtp")
    prompt = tokens(400, 1)
    answer, _ = say(held.open(prompt, GREEDY), 5)
    say(held.open(tokens(30, 2), GREEDY), 5)
    put = []
    cache = type(caches(held._state(held.draft))[0])
    plain = cache.put
    monkeypatch.setattr(
        cache, "put", lambda self, at, rows: (put.append(at), plain(self, at, rows))
    )
    assert held.open(prompt + answer + [3], GREEDY).reused == 404
    assert set(put) == {0}


def test_a_full_window_ends_the_answer_and_leaves_shorter_branches():
    held, prompt = sessions(), tokens(CAPACITY - 20, 1)
    counts = Counts()
    for _ in held.open(prompt, HEAT, marks=(60,)).answer(counts, 100):
        pass
    assert counts.stop == "window" and len(counts.tokens) == 21
    whole = prompt + counts.tokens
    with pytest.raises(ValueError, match=f"{CAPACITY + 2} tokens exceed the window of {CAPACITY}"):
        held.open(whole + [1], HEAT)
    turn = held.open(prompt + counts.tokens[:3], HEAT)
    assert turn.reused == len(prompt)
    assert (
        say(turn, 5)[0]
        == Plain(target(), draft("dflash2"), HEAT)
        .hear(prompt[:60])
        .hear(prompt[60:])
        .hear(counts.tokens[:3])
        .say(5)[0]
    )
    assert held.open(whole[:CAPACITY], HEAT).reused >= len(prompt)


def test_what_is_refused_changes_nothing():
    held, prompt = sessions(), tokens(20, 1)
    turn = held.open(prompt, HEAT)
    steps = turn.answer(Counts(), 6)
    made = next(steps)
    for wrong, message in (
        (dict(ids=[]), "at least 1 token, got none"),
        (dict(ids=tokens(CAPACITY + 1, 1)), "exceed the window"),
        (dict(ids=prompt, marks=(21,)), r"marks: expected 0 .. 20.*got \[21\]"),
        (dict(ids=prompt, sampling=sampling(logit_bias={IDS: 1.0})), "logit_bias"),
    ):
        with pytest.raises(ValueError, match=message):
            held.open(**{"sampling": HEAT, **wrong})
    made += [t for ts in steps for t in ts]
    assert made == open_and_say(prompt, 6)
    held.open(tokens(5, 2), HEAT)
    with pytest.raises(ValueError, match="another one was opened since"):
        list(turn.more(Counts(), 3))
    assert not hasattr(turn.stream, "state")  # or captured steps would take it to be in use


def open_and_say(prompt: list[int], count: int) -> list[int]:
    return Plain(target(), draft("dflash2"), HEAT).hear(prompt).say(count)[0]


def test_an_answer_that_failed_goes_on_from_its_prompt(monkeypatch):
    held, prompt = sessions(), tokens(40, 1)
    turn = held.open(prompt, HEAT)

    def broken(stream, draft, rows):
        plain(stream, draft, rows)
        raise RuntimeError("broken")

    plain = Stream.launch
    monkeypatch.setattr(Stream, "launch", broken)
    with pytest.raises(RuntimeError, match="broken"):
        say(turn, 9)
    with pytest.raises(ValueError, match="another one was opened"):
        say(turn, 9)
    monkeypatch.undo()
    turn = held.open(prompt, HEAT)
    assert turn.reused == 40 and say(turn, 9)[0] == open_and_say(prompt, 9)


def test_a_prompt_that_failed_leaves_the_others(monkeypatch):
    held, prompt = sessions(), tokens(40, 1)
    answer, _ = say(held.open(prompt, HEAT), 5)
    for name, ids in (
        ("prefill", tokens(90, 3)),
        ("prefill", prompt + answer + tokens(80, 4)),
        ("step", prompt + answer + tokens(30, 5)),
    ):
        plain = getattr(text, name)

        def broken(*args, plain=plain, **named):
            plain(*args, **named)
            raise RuntimeError("broken")

        monkeypatch.setattr(text, name, broken)
        with pytest.raises(RuntimeError, match="broken"):
            held.open(ids, HEAT)
        monkeypatch.undo()
    turn = held.open(prompt + answer + [7], HEAT)
    assert turn.reused == 44
    want = Plain(target(), draft("dflash2"), HEAT).hear(prompt)
    assert want.say(5)[0] == answer
    assert say(turn, 6) == want.hear([answer[-1], 7]).say(6)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_an_answer_that_is_dropped_rests_at_its_last_step(late):
    """Also where a step was running: its tokens stand in the text."""
    held, prompt = sessions("mtp"), tokens(20, 1)
    turn = held.open(prompt, HEAT)
    turn.stream.late = late
    steps = turn.answer(Counts(), 30)
    made = [t for _, ts in zip(range(4), steps, strict=False) for t in ts]
    steps.close()
    text = Plain(target(), draft("mtp"), HEAT).hear(prompt).say(30)[0]
    assert made == text[: len(made)] and (turn.stream.flight is not None) == late
    turn = held.open(prompt + text, HEAT)
    more = turn.reused - len(prompt) - (len(made) - 1)
    assert (1 <= more <= 4) if late else more == 0


def test_more_of_an_answer_is_one_answer():
    held, prompt = sessions(), tokens(20, 1)
    turn, counts = held.open(prompt, HEAT), Counts()
    made = [t for ts in turn.answer(counts, 4) for t in ts]
    made += [t for ts in turn.more(Counts(), 7) for t in ts]
    assert made == open_and_say(prompt, 11)
    (one,) = held.held.all
    assert sorted(one.snapshots) == [20, 30]


def test_states_are_made_once():
    held = sessions()
    before = {x.data_ptr() for c in caches(held._state(held.draft)) for x in c.rows(0, CAPACITY)}
    for n in range(3):
        turn = held.open(tokens(30, n), HEAT)
        say(turn, 5)
        after = {x.data_ptr() for c in caches(turn.stream.state) for x in c.rows(0, CAPACITY)}
        assert before == after


def test_an_unpaused_reference_is_the_ordinary_stream():
    """What these tests compare with is what `open_stream` and `advance` do."""
    prompt = tokens(70, 1)
    stream = open_stream(target(), draft("mtp"), prompt, HEAT, CAPACITY)
    plain = Plain(target(), draft("mtp"), HEAT).hear(prompt)
    assert_same_state(stream.state, plain.state)
