"""Choices by worth: which program synthetic steps lead to, what they cost, and exact texts."""

import dataclasses
import functools
import random

import pytest
import torch

from tests.decode.small import DRAFT, IDS, dflash2_draft, mtp_draft
from tests.decode.small import model as small
from tests.model.small import copy, random_tokens
from tr.decode.generate import generate
from tr.decode.stream import Counts, advance, open_stream
from tr.drafts.adaptive import TRIAL, Adaptive, Conversation, Costs
from tr.drafts.base import MISSING, Draft, Seen
from tr.drafts.dflash2 import Dflash2
from tr.drafts.dflash2_lookup import Dflash2Lookup
from tr.drafts.joint import Copy, Joint
from tr.drafts.lookup import find
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.tree import tensors, unchecked

DEAR = Costs(1.8, 2.0, 1.6, ((4, 1.2), (16, 1.4)))  # a draft is most of a step
CHEAP = Costs(1.2, 1.5, 1.2, ((8, 1.1), (16, 1.45)))
PAGE = list(range(40))


@pytest.fixture(autouse=True)
def fast():
    with unchecked(), torch.inference_mode():
        yield


def long(block: Draft | None = None) -> Dflash2Lookup:
    block = block or dflash2_draft(small())
    assert isinstance(block, Dflash2)
    return Dflash2Lookup(block, 8, 1, 4, 3, 2)


def adaptive(costs: Costs = DEAR, rival: bool = False, main: Draft | None = None) -> Adaptive:
    other = mtp_draft(small(), 3) if rival else None
    return Adaptive(main or long(), other, costs, late=False, ngram_min=2, ngram_max=16)


class Text:
    """A conversation whose steps keep what `right` says: a program's name to tokens accepted."""

    def __init__(self, strategy: Adaptive, prompt: list[int], written: list[int]) -> None:
        self.conversation = strategy.open(prompt)
        self.written, self.costs = iter(written), strategy.costs
        self.seen = [Seen(1, 1, tokens=(next(self.written),))]
        self.ran: list[str] = []
        self.tokens, self.cost = 0, 0.0

    def price(self, name: str, rows: int) -> float:
        by_name = {"dflash2": "dflash2", "dflash2_lookup": "dflash2_lookup", "mtp": "mtp"}
        if name in by_name:
            return getattr(self.costs, by_name[name])
        return min(cost for most, cost in self.costs.copy if most >= rows)

    def step(self, right) -> str:
        program, rows = self.conversation.pick(self.seen)
        name = program.name.split(" + ")[0]
        kept = min(right(name), rows - 1) + 1
        added = tuple(next(self.written) for _ in range(kept))
        self.seen.append(Seen(rows, kept, program.name, added))
        self.ran.append(name)
        self.tokens += kept
        self.cost += self.price(name, rows)
        return name


def fresh(count: int = 4000) -> list[int]:
    """Tokens without a repetition."""
    return list(range(1000, 1000 + count))


def periods(count: int = 100) -> list[int]:
    return PAGE * count


def test_good_blocks_of_a_new_text_stay_blocks():
    text = Text(adaptive(CHEAP), PAGE, fresh())
    assert {text.step(lambda name: 6) for _ in range(20)} == {"dflash2"}


def test_a_text_that_repeats_is_copied_as_long_as_that_is_right():
    text = Text(adaptive(), PAGE, [*periods(9), *fresh()])
    assert [text.step(lambda name: 15) for _ in range(12)] == ["dflash2"] + ["copy"] * 11
    while text.tokens < 9 * len(PAGE):
        text.step(lambda name: 15)
    for _ in range(3):
        text.step(lambda name: 2)
    assert text.ran[-1] == "dflash2"


def test_wrong_matches_are_given_up():
    """Every pair of tokens has stood somewhere, and what followed there is never right."""
    draw = random.Random(1)
    prompt = [t for a in range(30) for b in range(30) for t in (a, b, 99)]
    text = Text(adaptive(), prompt, draw.choices(range(30), k=900))
    ran = [text.step(lambda name: 3 * (name != "copy")) for _ in range(60)]
    assert "copy" in ran[:3] and ran[-20:].count("copy") == 0


def test_a_tail_runs_where_blocks_are_right_to_their_end_and_it_is():
    def right(name, tail):
        return 7 if name == "dflash2" else 7 + tail

    costs = dataclasses.replace(CHEAP, dflash2_lookup=1.4)
    for tail, expected in ((8, "dflash2_lookup"), (0, "dflash2")):
        text = Text(adaptive(costs), PAGE, fresh())
        ran = [text.step(functools.partial(right, tail=tail)) for _ in range(40)]
        assert ran[0] == "dflash2" and set(ran[-10:]) == {expected}, tail
        assert ran.count("dflash2_lookup") > 20 or tail == 0


@pytest.mark.parametrize("costs", [DEAR, CHEAP], ids=["dear", "cheap"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("repeats", [False, True], ids=["new", "repeats"])
def test_regret_is_small(costs, share, repeats):
    """Beside each single program over the same luck: 3 % and two steps of 400 tokens' cost."""
    luck = [random.Random(n).random() for n in range(9000)]

    def right(name, at):
        if name == "copy":
            return 15 if repeats else 0
        return next((n for n in range(7) if luck[at + n] >= share), 7)

    def alone(name, cost, rows):
        place = spent = 0
        while place < 400:
            place += min(right(name, place), rows - 1) + 1
            spent += cost
        return spent

    text = Text(adaptive(costs), PAGE, periods() if repeats else fresh())
    while text.tokens < 400:
        text.step(lambda name: right(name, text.tokens))
    singles = [alone("copy", cost, rows) for rows, cost in costs.copy]
    best = min(alone("dflash2", costs.dflash2, 8), *singles)
    assert text.cost <= best / 0.97 + 2 * costs.dflash2


@pytest.mark.parametrize("share, stays", [(0.3, "mtp"), (0.95, "dflash2")])
def test_a_rival_takes_over_where_the_main_draft_is_poor(share, stays):
    """After the trial one of both is left, and nothing brings the other one back."""
    draw = random.Random(5)

    def right(name):
        n = 0
        while n < 7 and draw.random() < (share if "dflash2" in name else 0.7):
            n += 1
        return n

    strategy = adaptive(rival=True)
    text = Text(strategy, PAGE, fresh())
    assert strategy.trial is not None
    for _ in range(30):
        text.step(right)
    names = [seen.ran for seen in text.seen[1:]]
    trial = [name for name in names if name == "dflash2 + mtp"]
    assert 1 <= len(trial) <= TRIAL and names[: len(trial)] == trial
    rest = {name.split("_")[0] for name in names[len(trial) :]}
    assert rest == {stays}
    on = text.conversation.open([*PAGE, *fresh(500)])
    assert on.phase is text.conversation.of.alone[stays == "mtp"]  # its state has fallen behind


def test_a_main_draft_that_is_little_better_lets_no_rival_go():
    """It may turn worse later; one that is clearly better stays alone."""
    strategy = adaptive(rival=True)
    assert strategy.trial is not None
    text = Text(strategy, PAGE, fresh())
    for _ in range(10):
        text.step(lambda name: 2)
    for _ in range(20):
        text.step(lambda name: 2 * (name == "mtp"))
    names = [seen.ran for seen in text.seen[1:]]
    both = names.count("dflash2 + mtp")
    assert 10 < both <= 16 and names == ["dflash2 + mtp"] * both + ["mtp"] * (30 - both)
    text = Text(strategy, PAGE, fresh())
    for _ in range(6):
        text.step(lambda name: 5)
    names = [seen.ran for seen in text.seen[1:]]
    assert names == ["dflash2 + mtp"] * 2 + ["dflash2"] * 4


def test_a_choice_is_a_function_of_what_was_seen():
    """Asked again, later, or for less, it says the same; steps of another text begin it anew."""
    strategy = adaptive(rival=True)
    text = Text(strategy, PAGE, [*periods(3), *fresh()])
    draw = random.Random(2)
    for _ in range(25):
        text.step(lambda name: draw.randrange(8))
    picks = [text.conversation.pick(text.seen[:n]) for n in range(1, 27)]
    assert [(p.name, rows) for p, rows in picks[:-1]] == [(s.ran, s.rows) for s in text.seen[1:]]
    assert strategy.open(PAGE).pick(text.seen) == picks[-1]
    assert text.conversation.pick([]) == strategy.open(PAGE).pick([])


def test_few_pairs_of_a_program_and_its_rows():
    """Each one is a captured graph."""
    one = adaptive(CHEAP)
    text = Text(one, PAGE, [*periods(4), *fresh()])
    draw = random.Random(4)
    for _ in range(200):
        text.step(lambda name: draw.choice([0, 3, 7, 15]))
    assert len({(s.ran, s.rows) for s in text.seen[1:]}) <= 4
    assert {s.ran for s in text.seen[1:]} <= {program.name for program in one.programs}
    assert len({program.name for program in one.programs}) == len(one.programs) == 3
    both = adaptive(rival=True)
    assert len({program.name for program in both.programs}) == len(both.programs) == 7


def test_late_a_copy_must_outlast_the_step_that_runs():
    prompt = [*PAGE, *PAGE[:5]]
    soon, late = (
        Conversation(a, tuple(prompt), a.alone[0])
        for a in (adaptive(CHEAP), dataclasses.replace(adaptive(CHEAP), late=True))
    )
    seen = [Seen(1, 1, tokens=(PAGE[5],)), Seen(8, 8, "dflash2", tuple(PAGE[6:14]))]
    assert soon.pick(seen)[0].name == late.pick(seen)[0].name == "copy + dflash2_lookup"
    wrong = [*seen, *(Seen(8, 3, "copy + dflash2_lookup", (14 + n, 500 + n)) for n in range(2))]
    assert soon.pick(wrong)[0].name == late.pick(wrong)[0].name == "dflash2"
    # a match of two tokens
    assert soon.pick(seen[:1])[1] >= late.pick(seen[:1])[1]


def test_adaptive_depth_stays_the_chain_s_own():
    m = small()
    plain = mtp_draft(m, 4)
    assert isinstance(plain, Mtp)
    strategy = adaptive(main=dataclasses.replace(plain, least=3))
    text = Text(strategy, PAGE, fresh())
    text.price = lambda name, rows: 1.0  # type: ignore[method-assign]
    kept = iter((0, 1, 2, 4, 0))
    ran = [text.step(lambda name: next(kept)) for _ in range(5)]
    assert ran == ["mtp 3"] * 3 + ["mtp 4"] * 2
    assert [seen.rows for seen in text.seen[1:]] == [4, 4, 4, 5, 5]


@dataclasses.dataclass(frozen=True, eq=False)
class InTurn(Adaptive):
    """Programs by number, whatever was accepted; a state that fell behind must do no harm."""

    order: tuple[int, ...] = (0, 1, 2)

    def open(self, prompt):
        return self

    def pick(self, seen):
        program = self.programs[self.order[len(seen) % len(self.order)]]
        return program, program.rows


def in_turn(strategy: Adaptive, order: tuple[int, ...]) -> InTurn:
    fields = {f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)}
    return InTurn(**fields, order=order)


@pytest.mark.parametrize("length, heat", [(1, 0.9), (30, 0.0), (128, 0.9)])
def test_any_program_after_any_other_is_exact(length, heat):
    m, s = small(), sampling(heat, seed=7)
    prompt = random_tokens(length, seed=length).clamp(max=IDS - 1).tolist()
    expected = generate(m, Raw(), prompt, s, 24, (), 192).tokens
    both, chain = adaptive(rival=True), adaptive(main=mtp_draft(m, 3))
    everything = tuple(range(len(both.programs)))
    for strategy, order in ((both, everything), (chain, (0, 1)), (chain, (0,))):
        counts = generate(m, in_turn(strategy, order), prompt, s, 24, (), 192)
        assert counts.tokens == expected, order
        assert set(counts.ran) == {strategy.programs[i].name for i in order}


@pytest.mark.parametrize("positions", [64, 70])
def test_windows_and_tables_end(positions):
    """A chain that takes in sixteen rows stops short of the last positions, and no index leaves."""
    m, s = small(positions=positions), sampling()
    target = mtp_draft(m, 3)
    for length in (46, 50, 63):
        prompt = random_tokens(length, seed=length).clamp(max=IDS - 1).tolist()
        expected = generate(m, Raw(), prompt, s, 100, (), 64)
        strategy = in_turn(adaptive(main=target), (0, 1))
        counts = generate(m, strategy, prompt, s, 100, (), 64)
        assert counts.tokens == expected.tokens and counts.stop == "window"


def test_a_state_that_took_in_is_the_one_that_proposed():
    """Bit for bit in every row that a later step reads, for each draft of a joint state."""
    m, s = small(), sampling()
    drafts = long(), dataclasses.replace(mtp_draft(m, 3), fed=16)  # type: ignore[type-var]
    joint = Joint(drafts, (0, 1))  # type: ignore[arg-type]
    first = Copy(joint, 16, 1, 4)
    prompt = random_tokens(30, seed=3).clamp(max=IDS - 1).tolist()
    stream = open_stream(m, first, prompt, s, 128)
    list(advance(stream, Counts(), 9))
    feed, pos = stream.state.feed, stream.pos
    ring, chain = stream.state.draft
    taken = joint.take_in(copy((ring, chain)), feed)
    found, copied = first.propose(copy((ring, chain)), feed, s)
    assert torch.equal(found, find(feed.history, feed.pos, 1, 4, 15))
    _, ran = drafts[0].propose(copy(ring), feed, s)
    for name, t in tensors(ran).items():
        assert torch.equal(t, tensors(taken[0])[name]) and torch.equal(t, tensors(copied[0])[name])
        assert not torch.equal(t, tensors(ring)[name])
    _, ran = drafts[1].propose(copy(chain), feed, s)
    for name, t in tensors(ran.cache).items():
        rows = next(d for d in range(t.ndim) if t.shape[d] >= 128)
        known = torch.arange(pos + 1)
        mine, own = (x.index_select(rows, known) for x in (t, tensors(taken[1].cache)[name]))
        assert torch.equal(mine, own), name
    only = Joint(joint.drafts, (1,)).take_in(copy((ring, chain)), feed)
    assert all(torch.equal(t, tensors(only[0])[name]) for name, t in tensors(ring).items())


def test_drafts_of_different_taps_do_not_stand_side_by_side():
    other = dflash2_draft(small(), dataclasses.replace(DRAFT, taps=(1, 2)))
    with pytest.raises(ValueError, match=r"same layers, got \[\(0, 2\), \(1, 2\)\]"):
        Joint((long(), long(other)), (0,))  # type: ignore[arg-type]


def test_before_it_is_opened_it_proposes_what_its_main_draft_does():
    m, s = small(), sampling()
    strategy = adaptive(rival=True)
    stream = open_stream(m, strategy, PAGE[:20], s, 64)
    state = stream.state
    drafts, _ = strategy.propose(copy(state.draft), state.feed, s)
    block, _ = strategy.main.propose(copy(state.draft[0]), state.feed, s)
    assert drafts.tolist() == block.tolist()
    chain = adaptive(main=mtp_draft(m, 3))
    stream = open_stream(m, chain, PAGE[:20], s, 64)
    drafts, _ = chain.propose(stream.state.draft, stream.state.feed, s)
    assert len(drafts) == chain.rows - 1 == 15 and drafts[3:].tolist() == [MISSING] * 12
