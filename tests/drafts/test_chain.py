"""Copied steps: whole from the text, the ring kept current, and out at the first miss."""

import dataclasses

import pytest
import torch

from tests.decode.embedded import CAPACITY, Case, draft, model
from tests.decode.small import IDS, dflash2_draft
from tests.decode.small import model as small
from tests.drafts.programs import in_turn
from tests.model.small import copy, random_tokens
from tr.decode.generate import generate
from tr.decode.stream import Counts, advance, open_stream
from tr.drafts.base import MISSING, Seen
from tr.drafts.chain import Chain
from tr.drafts.dflash2 import Dflash2
from tr.drafts.lookup import find
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.tree import tensors, unchecked

TOKENS = 113
FULL, LONG, CUT = Seen(8, 8), Seen(16, 16), Seen(16, 15)


@pytest.fixture(autouse=True)
def fast():
    with unchecked(), torch.inference_mode():
        yield


def chain(block, after: int = 1) -> Chain:
    assert isinstance(block, Dflash2)
    return Chain(block, 8, 2, 16, 12, 2, after=after)


def test_copies_follow_long_steps_until_the_first_miss():
    strategy = chain(dflash2_draft(small()))
    block, again = (strategy.block, 8), (strategy.copy, 16)
    for seen in ([], [FULL], [LONG, CUT], [LONG, CUT, FULL]):
        assert strategy.pick(seen) == block, seen
    for seen in ([FULL, FULL], [LONG, CUT, FULL, FULL], [LONG, Seen(9, 9)]):
        assert strategy.pick(seen) == (strategy, 16), seen
    for seen in ([LONG], [FULL, FULL, LONG], [LONG, LONG]):
        assert strategy.pick(seen) == again, seen
    later = chain(dflash2_draft(small()), after=2)
    assert later.pick([FULL, LONG]) == (later, 16)
    assert later.pick([LONG, LONG]) == (later.copy, 16)
    assert strategy.copy is strategy.copy  # one program, compiled once


def test_a_copied_step_skips_the_block(monkeypatch):
    """Its drafts are the text's; the block's forward is not called."""
    m, block = small(), dflash2_draft(small())
    prompt = [3, 4, 5, 6, 7, 8] * 4
    stream = open_stream(m, block, prompt, sampling(), 64)
    strategy = chain(block)
    feed = dataclasses.replace(stream.state.feed, history=torch.tensor(prompt * 2))
    monkeypatch.setattr(Dflash2, "propose", None)
    drafts, _ = strategy.copy.propose(stream.state.draft, feed, sampling())
    assert torch.equal(drafts, find(feed.history, feed.pos, 2, 16, 15))
    assert strategy.copy.found(feed) == int((drafts != MISSING).sum()) > 0
    unknown = dataclasses.replace(feed, history=torch.arange(len(feed.history)))
    assert strategy.copy.found(unknown) == 1  # a step of one row would leave the ring behind


def test_the_ring_is_what_it_would_be_had_the_block_run():
    """One step's rows enter in the same way, whichever program runs: bit for bit."""
    m, block = small(), dflash2_draft(small())
    prompt = random_tokens(30, seed=3).clamp(max=IDS - 1).tolist()
    stream = open_stream(m, in_turn(block, "long"), prompt, sampling(), 128)
    list(advance(stream, Counts(), 9))
    strategy, state = chain(block), stream.state
    _, ran = strategy.propose(copy(state.draft), state.feed, sampling())
    _, skipped = strategy.copy.propose(copy(state.draft), state.feed, sampling())
    held = tensors(state.draft)
    for name, t in tensors(ran).items():
        assert torch.equal(t, tensors(skipped)[name]) and not torch.equal(t, held[name]), name


def test_the_ring_keeps_up_over_many_skipped_steps():
    """By copies, blocks or both, the window holds the same keys, up to float32's roundings."""
    m = small(dtype=torch.float32)
    prompt = random_tokens(40, seed=5).clamp(max=IDS - 1).tolist()
    rings = []
    for programs in (("copy",), ("block",), ("copy", "long", "copy")):
        block = dflash2_draft(m)
        stream = open_stream(m, in_turn(block, *programs), prompt, sampling(), 128)
        list(advance(stream, Counts(), 50))
        assert isinstance(block, Dflash2) and stream.pos == 90
        ring = block.take_in(stream.state.draft, stream.state.feed).ring
        size = ring[0].k.shape[2]
        seen = torch.arange(90 - block.window, 90) % size
        rings.append([t.index_select(2, seen) for layer in ring for t in (layer.k, layer.v)])
    for other in rings[1:]:
        for a, b in zip(rings[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("setting", ["greedy", "0.5"])
def test_the_embedded_model_s_copy_is_raw_s(setting, monkeypatch):
    case = Case("copy", 1, setting)
    strategy, copied = chain(draft("dflash2", case)), []
    propose = type(strategy.copy).propose

    def counted(self, state, feed, s):
        copied.append(int(feed.pos))
        return propose(self, state, feed, s)

    monkeypatch.setattr(type(strategy.copy), "propose", counted)
    counts, expected = (
        generate(model(), one, case.prompt, case.sampling, TOKENS, (), CAPACITY)
        for one in (strategy, Raw())
    )
    assert counts.tokens == expected.tokens
    assert copied and counts.tokens_per_step > 8


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 7}], ids=str)
@pytest.mark.parametrize("length", [1, 33, 128])
def test_copies_that_are_wrong_change_nothing(length, settings):
    m, s = small(), sampling(**settings)
    prompt = random_tokens(length, seed=length).clamp(max=IDS - 1).tolist()
    expected = generate(m, Raw(), prompt, s, 24, (), 192).tokens
    for programs in (("copy",), ("copy", "block", "long", 11)):
        counts = generate(m, in_turn(dflash2_draft(m), *programs), prompt, s, 24, (), 192)
        assert counts.tokens == expected


def test_a_cut_inside_a_copied_step():
    """The budget ends one in its middle; going on from there is as if it had not stopped."""
    case = Case("copy", 1, "greedy")
    strategy = chain(draft("dflash2", case), after=1)
    whole = generate(model(), strategy, case.prompt, case.sampling, TOKENS, (), CAPACITY).tokens
    stream = open_stream(model(), strategy, case.prompt, case.sampling, CAPACITY)
    made = [int(stream.state.feed.anchor)]
    for part in (60, 5, TOKENS - 66):
        for tokens in advance(stream, Counts(), part):
            made += tokens
    assert made == whole
