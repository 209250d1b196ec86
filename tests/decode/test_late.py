"""Stops where the host reads a step late: exact inside a block, and no trace of the step behind."""

import functools
from dataclasses import replace

import pytest
import torch

from tests.decode.scripted import Scripted, by_position
from tests.decode.signs import Signs, signs
from tests.decode.small import DRAFT, IDS, dflash2_draft, model, mtp_draft
from tests.model.small import copy, meaning, random_tokens
from tr.decode.generate import generate
from tr.decode.step import State
from tr.decode.stream import Counts, Flight, Stream, advance, open_stream
from tr.decode.words import Words
from tr.drafts.base import Draft
from tr.drafts.lookup import Lookup
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.tree import unchecked

CAPACITY, LENGTH = 64, 20
HEATS = (0.0, 0.8)
MORE = 9  # tokens written after a stop
NAMES = ("raw", "mtp", "dflash2", "lookup", "perfect", "scripted")
BLOCKS = [("perfect", 0.0, range(1, 10)), ("perfect", 0.8, range(1, 10))] + [
    (name, 0.8, (1, 3, 6)) for name in ("raw", "mtp", "dflash2", "scripted")
]  # a perfect block ends everywhere
PLACES = pytest.mark.parametrize(
    "name, heat, places", BLOCKS, ids=[f"{name}, {heat}" for name, heat, _ in BLOCKS]
)
LATE = pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@functools.cache
def truth(heat: float) -> list[int]:
    """The prompt and what raw decoding writes up to the window's end."""
    prompt = random_tokens(LENGTH).clamp(max=IDS - 1).tolist()
    with unchecked():
        counts = generate(model(), Raw(), prompt, sampling(heat, seed=4), CAPACITY, (), CAPACITY)
    assert counts.stop == "window" and len(prompt) + len(counts.tokens) == CAPACITY + 1
    return prompt + counts.tokens


@functools.cache
def draft(name: str, heat: float) -> Draft:
    m = model()
    if name == "mtp":
        return mtp_draft(m, 3)
    if name == "dflash2":
        return dflash2_draft(m)
    if name == "lookup":
        return Lookup(7, 1, 3)
    if name == "perfect":
        return Oracle(torch.tensor(truth(heat)), 7, 1.0)
    known = torch.tensor(truth(heat))
    return Raw() if name == "raw" else Scripted(known, by_position(3), dflash2_draft(m))


@functools.cache
def opened(name: str, heat: float) -> Stream:
    prompt = truth(heat)[:LENGTH]
    return open_stream(model(), draft(name, heat), prompt, sampling(heat, seed=4), CAPACITY)


def start(name: str, heat: float, late: bool) -> Stream:
    stream = opened(name, heat)
    return replace(stream, state=copy(stream.state), late=late)


def go(stream: Stream, tokens: int, *args, **named) -> tuple[list[int], Counts]:
    counts = Counts()
    made = [t for tokens in advance(stream, counts, tokens, *args, **named) for t in tokens]
    assert made == counts.tokens and sum(counts.kept) == len(made)
    assert stream.flight is None
    return made, counts


def stands(state: State) -> dict[str, torch.Tensor]:
    """What a stopped state stands for."""
    feed, n = state.feed, int(state.feed.count)
    return meaning(copy(state.target)) | {
        "anchor": feed.anchor,
        "pos": feed.pos,
        "count": feed.count,
        "history": feed.history[: int(feed.pos) + 1],
        "hidden": feed.hidden[:n],
        "taps": feed.taps[:n],
    }


def assert_same(a: State, b: State) -> None:
    one, two = stands(a), stands(b)
    for name, x in one.items():
        assert torch.equal(x, two[name]), name


@pytest.mark.parametrize("name", NAMES)
def test_to_the_window_s_end(name, heat=0.8):
    """Reading late changes no step: rows, drafts and tokens are those of reading at once."""
    runs = {late: go(start(name, heat, late), CAPACITY) for late in (False, True)}
    (tokens, now), (_, late) = runs[False], runs[True]
    assert tokens == truth(heat)[LENGTH + 1 :]
    for counts in (now, late):
        counts.seconds = 0.0
    assert now == late and now.stop == "window"


WORDS = {"none": None, "words": Words(Signs()), "a stop": Words(Signs(), ["?"])}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_step_is_launched_before_the_one_before_it_is_read(words, monkeypatch):
    """But where a stop string may cut the one before, and where the text may end in it."""
    singles, blocks = (start(name, 0.0, True) for name in ("raw", "perfect"))
    order, launch, read = [], Stream.launch, Flight.read
    monkeypatch.setattr(Stream, "launch", lambda *a: (order.append("launch"), launch(*a))[1])
    monkeypatch.setattr(Flight, "read", lambda *a: (order.append("read"), read(*a))[1])
    go(singles, 6, words=words)
    if words is not None and words.stops:
        assert order == ["launch", "read"] * 6
    else:
        assert order == ["launch", *["launch", "read"] * 5, "read"]
    order.clear()
    go(blocks, CAPACITY)  # of 8 of 8, but how wide the sixth can be depends
    assert order == ["launch", *["launch", "read"] * 4, "read", "launch", "read"]


@PLACES
def test_an_end_token_at_every_place_of_a_block(name, heat, places):
    text = truth(heat)
    for p in places:
        end = text[LENGTH + p]
        first = text.index(end, LENGTH + 1)
        stream = start(name, heat, True)
        made, counts = go(stream, CAPACITY, (end, IDS + 1))
        assert made == text[LENGTH + 1 : first + 1] and counts.stop == "eos"
        assert stream.pos == first
        once = start(name, heat, False)
        go(once, CAPACITY, (end,))
        assert_same(stream.state, once.state)
        more, counts = go(stream, MORE)
        assert more == text[first + 1 :][:MORE] and counts.stop == "length"


@PLACES
def test_a_budget_at_every_place_of_a_block(name, heat, places):
    text = truth(heat)
    for part in places:
        stream, made = start(name, heat, True), []
        for _ in range(max(2, 9 // part)):
            tokens, counts = go(stream, part)
            assert counts.stop == "length" and len(tokens) == part
            made += tokens
            assert stream.pos == LENGTH + len(made)
        made += go(stream, MORE)[0]
        assert made == text[LENGTH + 1 :][: len(made)], part


@PLACES
def test_a_stop_string_at_every_place_of_a_block(name, heat, places):
    text = truth(heat)
    for p in places:
        stop = signs(text[LENGTH + p : LENGTH + p + 2])
        last = LENGTH + 2 + signs(text[LENGTH + 1 :]).index(stop)  # of the match
        stream, words = start(name, heat, True), Words(Signs(), [stop])
        made, counts = go(stream, CAPACITY, words=words)
        assert made == text[LENGTH + 1 : last + 1] and counts.stop == "string"
        assert words.take() + words.finish() == signs(made[:-2])
        assert stream.pos == last
        assert go(stream, MORE)[0] == text[last + 1 :][:MORE]


@LATE
@pytest.mark.parametrize("name", ["raw", "mtp", "perfect"])
def test_cancelling_after_every_step(name, late):
    """What was running is taken in: the state stands at the last yielded token."""
    text = truth(0.8)
    for n in range(5):
        asked = iter([False] * n + [True])
        stream = start(name, 0.8, late)
        made, counts = go(stream, CAPACITY, cancelled=lambda asked=asked: next(asked))
        assert counts.stop == "cancelled" and counts.steps == n
        assert stream.pos == LENGTH + len(made)
        assert made + go(stream, MORE)[0] == text[LENGTH + 1 :][: len(made) + MORE]


@LATE
@pytest.mark.parametrize("rest", [1, 20])
@pytest.mark.parametrize("name", ["mtp", "perfect"])
def test_a_caller_that_drops_the_loop_loses_nothing(name, rest, late):
    """The step that was running is the next call's first, under that call's own limits."""
    text = truth(0.0)
    for n in range(1, 3):
        stream, counts, made = start(name, 0.0, late), Counts(), []
        steps = advance(stream, counts, 40)
        for _ in range(n):
            made += next(steps)
        steps.close()
        assert made == counts.tokens and (stream.flight is not None) == late
        made += go(stream, rest)[0]
        assert stream.pos == LENGTH + len(made)
        made += go(stream, MORE, (text[0],))[0]
        assert made == text[LENGTH + 1 :][: len(made)]


def test_a_step_that_was_left_running_ends_where_the_next_call_says():
    """Its own end tokens were others: the host cuts it before it launches another one."""
    text = truth(0.0)
    for k in range(1, 9):
        stream = start("perfect", 0.0, True)
        steps = advance(stream, Counts(), 40)
        assert next(steps) == text[LENGTH + 1 : LENGTH + 9] and stream.flight is not None
        steps.close()
        last = text.index(text[LENGTH + 8 + k], LENGTH + 9)
        made, counts = go(stream, 30, (text[last],))
        assert made == text[LENGTH + 9 : last + 1] and counts.stop == "eos" and stream.pos == last
        assert go(stream, MORE)[0] == text[last + 1 :][:MORE]


@pytest.mark.parametrize("kind", ["end token", "position"])
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_steps_behind_the_end_change_nothing(name, kind):
    """However many there are and whatever their rows, and what follows is what would have."""
    text = truth(0.8)
    for p in (1, 6):
        stream = start(name, 0.8, False)
        at = text.index(text[LENGTH + p], LENGTH + 1) if kind == "end token" else LENGTH + p
        limits = (CAPACITY, (text[at],)) if kind == "end token" else (p,)
        go(stream, *limits)
        before = copy(stream.state)
        most = stream.draft.rows
        for rows in (most, most, max(1, most - 2), 1, most):
            result, _, stream.state = stream.model.step(
                stream.draft, stream.state, stream.sampling, rows
            )
            assert result[0] == 0
            assert_same(stream.state, before)
        assert go(stream, MORE)[0] == text[at + 1 :][:MORE]


@LATE
def test_an_end_token_that_is_the_mask_of_the_block(late):
    text = truth(0.0)
    for p in (3, 7):
        end = text[LENGTH + p]
        first = text.index(end, LENGTH + 1)
        config = replace(DRAFT, mask_token=end)
        for strategy in (
            dflash2_draft(model(), config),
            Scripted(torch.tensor(text), lambda pos: (7, 7), dflash2_draft(model(), config)),
        ):
            stream = open_stream(model(), strategy, text[:LENGTH], sampling(), CAPACITY)
            stream.late = late
            made, counts = go(stream, CAPACITY, (end,))
            assert made == text[LENGTH + 1 : first + 1] and counts.stop == "eos"
            assert made + go(stream, 9)[0] == text[LENGTH + 1 : first + 10]


@LATE
def test_a_budget_of_one_and_of_nothing(late):
    text = truth(0.0)
    counts = generate(model(), draft("perfect", 0.0), text[:LENGTH], sampling(), 1, (), CAPACITY)
    assert counts.tokens == text[LENGTH : LENGTH + 1] and counts.stop == "length"
    assert counts.steps == 0 and counts.tokens_per_step == 0
    stream = start("perfect", 0.0, late)
    assert go(stream, 0)[1].stop == "length" and stream.pos == LENGTH
    for n in range(1, 4):
        made, counts = go(stream, 1)
        assert made == [text[LENGTH + n]] and counts.kept == [1] and counts.accepted == [7]


@LATE
def test_a_full_window_takes_no_step(late):
    text = truth(0.0)
    stream = start("perfect", 0.0, late)
    go(stream, CAPACITY)
    assert stream.pos == CAPACITY
    made, counts = go(stream, 5)
    assert made == [] and counts.stop == "window" and counts.steps == 0
    assert stream.state.feed.history.tolist() == text


def test_more_end_tokens_than_the_device_holds():
    with pytest.raises(ValueError, match="eos: expected at most 16 end tokens, got 17"):
        go(start("raw", 0.0, False), 5, range(17))


@LATE
def test_logits_that_are_no_numbers(late):
    """The step before is in the text, the step behind it adds nothing, and the state is intact."""
    stream, text = start("mtp", 0.0, late), truth(0.0)
    steps, counts = advance(stream, Counts(), 40), Counts()
    made = next(steps)
    with torch.inference_mode():
        weight = stream.model.params.norm
        broken = replace(stream.model.params, norm=torch.full_like(weight, torch.nan))
    kept, stream.model = stream.model, replace(stream.model, params=broken)
    with pytest.raises(ValueError, match="are not finite"):
        for tokens in steps:
            made += tokens
    assert stream.flight is None and stream.pos == LENGTH + len(made)
    stream.model = kept
    made += [t for tokens in advance(stream, counts, MORE) for t in tokens]
    assert made == text[LENGTH + 1 :][: len(made)]
