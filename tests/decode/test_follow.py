"""A turn's few tokens, read in rounds of rows: what steps would have written, and one graph."""

import dataclasses

import pytest
import torch

from kernels.define import MAX_ROWS
from kernels.gated_delta_step.reference import absorb
from tests.decode.test_session import CAPACITY, Plain, assert_same_state, draft, sessions
from tests.decode.test_session import target as model
from tests.decode.test_session import tokens as text_of
from tests.decode.test_written import (
    NAMES,
    assert_same_bytes,
    begun,
    captured,
    captures,  # noqa: F401
    fast,  # noqa: F401
    made,
)
from tests.model.small import copy
from tr.decode import step
from tr.decode.session import Sessions
from tr.decode.step import SHORT, Model, State, begin, follow, is_short, prefill, read_short
from tr.drafts.adaptive import Adaptive
from tr.drafts.auto import Auto
from tr.drafts.base import Draft
from tr.drafts.chain import Chain
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.nn.gated_delta_net import State as Recurrent

HEAT = sampling(0.8, seed=7)
PROMPT = 325  # with an answer's first steps, shortly before a tile's end
COUNTS = (1, 7, 15, 16, 17, 33, 50, 64)


def settled(draft: Draft, state: State) -> State:
    """A copy with what waits for a next step done: records absorbed, the draft fed."""
    state = copy(state)
    feed, target = state.feed, state.target
    last = int(feed.count) - 1
    kept = draft.programs[0].take_in(state.draft, feed)
    for x in (feed.hidden, feed.taps):
        x[0] = x[last].clone()
    feed.count.fill_(1)
    for s in target.layers:
        if isinstance(s, Recurrent):
            pending = int(target.pending)
            absorb(s.h, s.tail, s.past_x, s.past_k, s.past_u, s.past_decay, pending)
    target.pending.zero_()
    state.prompt.copy_(target.pos)
    return dataclasses.replace(state, draft=kept)


@pytest.mark.parametrize(
    "kv, name",
    [
        ("bf16", "raw"),
        ("bf16", "oracle"),
        ("bf16", "copy"),
        ("bf16", "adaptive"),
        ("int4", "dflash2"),
        ("fp8", "mtp"),
        ("kvarn", "mtp"),
        ("kvarn", "dflash2"),
        ("int8", "adaptive"),
    ],
)
def test_rows_of_a_prompt_are_those_that_steps_would_have_written(kv, name):
    """Whatever stands behind the prompt's end: caches, recurrent state, hiddens, drafts' states."""
    m, drafts = made(kv)
    prompt = text_of(PROMPT, 3)
    if name == "oracle":
        whole, _ = Plain(m, Raw(), HEAT).hear(prompt).say(80)
        d: Draft = Oracle(torch.tensor(prompt + whole), 7, 0.9)
    elif name == "adaptive":
        fields = dataclasses.fields(Adaptive)
        d = Both(**{f.name: getattr(drafts[name], f.name) for f in fields})
    else:
        d = drafts[name]
    steps = Plain(m, d, HEAT).hear(prompt)
    answer, _ = steps.say(4)
    start, done, read = steps.copy().state, 0, answer[-1:]
    for n in COUNTS:
        made_now, _ = steps.say(n - done + 1)
        read, done = read + made_now[1:], n
        state = copy(start)
        junk = state.feed.history[PROMPT + 3 :]
        junk.copy_(torch.tensor(text_of(len(junk), n)))
        state = read_short(m, d, state, torch.tensor(read[:n]))
        assert int(state.prompt) == int(state.feed.pos) == PROMPT + 3 + n
        assert int(state.target.pending) == (n - 1) % MAX_ROWS + 1
        state = begin(m, state, HEAT)
        assert int(state.feed.anchor) == read[n]
        assert_same_state(settled(d, state), settled(d, steps.state))


@pytest.mark.parametrize("name", ["mtp", "dflash2"])
def test_prefill_and_rows_go_on_from_each_other(name):
    """But for rounding, reading by turns is reading at once; what counts as written is the same."""
    m, d = model(), draft(name)
    ids = torch.tensor(text_of(300, 5))
    state = step.init_state(m, d, CAPACITY)
    for start, end in ((0, 40), (40, 57), (57, 200), (200, 264), (264, 300)):
        before = int(state.target.pending)
        state = prefill(m, d, state, ids[start:end], HEAT, turn=True)
        assert (int(state.target.pending) > 0) == is_short(d, start, end - start, CAPACITY)
        assert before <= MAX_ROWS
    whole = prefill(m, d, step.init_state(m, d, CAPACITY), ids, HEAT)
    assert int(state.prompt) == int(whole.prompt) == 300
    for a, b in ((state.feed.hidden[0], whole.feed.hidden[0]), (state.feed.taps, whole.feed.taps)):
        torch.testing.assert_close(a[:1], b[:1], rtol=0.1, atol=0.1)
    if name == "mtp":
        got, want = (s.draft.cache.k[:, :300] for s in (state, whole))
        torch.testing.assert_close(got, want, rtol=0.1, atol=0.1)


def test_the_mode_is_carried(monkeypatch):
    """Strict sessions and heard prompts read all by prefill, others few tokens behind a text."""
    rounds = []
    plain = step.text.step
    monkeypatch.setattr(
        step.text, "step", lambda p, s, t, *rest: (rounds.append(len(t)), plain(p, s, t, *rest))[1]
    )

    def read(held: Sessions, ids: list[int], **named) -> list[int]:
        rounds.clear()
        held.open(ids, HEAT, **named)
        return list(rounds)

    prompt = text_of(128, 1)
    for strict in (False, True):
        held = sessions("dflash2", chunk=64, strict=strict)
        assert read(held, prompt) == []
        for n, count in ((1, 1), (16, 1), (17, 2), (64, 4), (65, 0)):
            ids = prompt + text_of(n, n)
            assert read(held, ids) == [MAX_ROWS] * count * (not strict), n
            assert read(held, ids, hear=lambda hidden, pos: None) == []
    held = sessions("dflash2")
    assert read(held, text_of(20, 2)) == []  # as few, behind nothing
    assert read(held, text_of(100, 3), marks=(80,)) == [MAX_ROWS] * 2  # few behind a snapshot
    for n, count in ((CAPACITY - MAX_ROWS - 1, 2), (CAPACITY - MAX_ROWS, 0), (CAPACITY, 0)):
        text = text_of(n, n)
        read(held, text[: n - 20])
        assert read(held, text) == [MAX_ROWS] * count, n


def test_rows_past_the_window_or_the_drafts_tables_do_not_run():
    d = Oracle(torch.zeros(200, dtype=torch.int64), 7, 1.0)
    assert is_short(Raw(), 1, SHORT, 512) and not is_short(Raw(), 1, SHORT + 1, 512)
    assert not is_short(Raw(), 0, 1, 512)
    assert is_short(d, 150, 33, 512) and not is_short(d, 150, 34, 512)


class Both(Adaptive):
    """Keeps both drafts current, where a conversation lets go of one."""

    def pick(self, seen):
        return self, self.rows


def programs() -> dict[str, tuple[str, list[Draft]]]:
    """By name: the state of `begun` that it goes with, and the strategy, opened more than once."""
    drafts = made("bf16")[1]
    chain, both = Chain(drafts["dflash2"], 8, 1, 4, 3, 2), drafts["adaptive"]  # type: ignore[arg-type]
    auto = Auto(Raw(), both, 0.5, lambda ids: "text")
    return {
        "raw": ("raw", [Raw(), Raw()]),
        "mtp": ("mtp", [drafts["mtp"]]),
        "chain": ("dflash2", [chain, chain.open([1])]),
        "adaptive": ("adaptive", [both, both.open([1, 2]), both.open([3]), auto.open([4])]),
    }


@pytest.mark.parametrize("name", ["raw", "mtp", "chain", "adaptive"])
def test_one_graph_serves_every_remainder_and_conversation(name, captures):  # noqa: F811
    m, (kept, opened) = captured("bf16"), programs()[name]
    state = begun("bf16", kept, 270, 600)
    pos, before = int(state.feed.pos), copy(state)
    captures.states.append(state)
    for d in opened:
        for n in (1, 16, 17, 64):
            after = read_short(m, d, state, torch.full((n,), 5))
            assert after is state and int(state.prompt) == pos + n
    assert len(captures.copied) == 1
    before.prompt.copy_(state.prompt)
    before.feed.history[pos : pos + 64] = 5
    assert_same_bytes(state, before)  # a capture leaves what it found
    captures.states.clear()
    del state, after
    m.forget()
    assert not m.following.forget.__self__.homes  # type: ignore[attr-defined]


def test_a_state_goes_back_to_its_own_storage(captures):  # noqa: F811
    """Also where another one of the same shapes is free, or each turn would copy all caches."""
    m = captured("bf16")
    other, state = (begun("bf16", "raw", 30, 600) for _ in range(2))
    for one in (other, state):
        m.step(Raw(), one, HEAT, 1)
    state = dataclasses.replace(state)  # as reading a chunk gives it
    del other, one
    assert m.step(Raw(), state, HEAT, 1)[-1] is state
    assert read_short(m, Raw(), state, torch.tensor([5])) is state


@pytest.mark.parametrize("name", ["raw", "mtp", "dflash2"])
def test_a_round_reads_nothing_on_the_host(name):
    """Where it did, it would not be one graph."""
    m, drafts = made("bf16")
    state = begun("bf16", name, 1, 600)
    state.prompt.add_(5)
    traced = torch.compile(follow, backend="eager", fullgraph=True, dynamic=False)
    (after,) = traced(m, drafts[name], copy(state), MAX_ROWS)
    (plain,) = follow(m, drafts[name], state, MAX_ROWS)
    assert int(after.feed.pos) == int(state.prompt) == 6
    assert_same_bytes(after, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv", ["bf16", "fp8", "int4"])
def test_captured_rounds_equal_eager_ones_to_the_byte(kv, name):
    m, drafts = made(kv, "cuda")
    d, state = drafts[name], begun(kv, name, 270, 600, "cuda")
    graphed, other = Model.build(m.params, m.ops, m.ids, "cuda_graph"), copy(state)
    for n in (31, 1, 16, 64):
        new = torch.tensor(text_of(n, n), device="cuda")
        state = read_short(m, d, state, new)
        other = read_short(graphed, d, other, new)
        assert_same_bytes(other, state)
