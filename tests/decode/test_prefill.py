"""A prompt in chunks: where they end, what a draft is given of them, what decides their path."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.decode.small import DRAFT, IDS, dflash2_draft, model, mtp_draft
from tests.model.small import copy, random_tokens
from tr.decode import step as loop
from tr.decode.step import Model, begin, cuts, init_state, prefill, read
from tr.drafts.lookup import Lookup
from tr.drafts.raw import Raw
from tr.model import text
from tr.model.sampling import sampling
from tr.tree import tensors

TOKENS = random_tokens(700).clamp(max=IDS - 1)
CAPACITY = 900


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def chunked(tokens=128, variant="tile"):
    return dataclasses.replace(model(variant), chunk=tokens)


@given(st.integers(0, 9000), st.integers(1, 9000), st.integers(1, 80), st.booleans())
def test_chunks_cover_a_prompt_and_end_on_the_grid(pos, tokens, blocks, strict):
    chunk = 64 * blocks
    ends = cuts(pos, tokens, chunk, strict)
    starts = [pos, *ends[:-1]]
    assert ends[-1] == pos + tokens
    assert all(0 < b - a <= chunk for a, b in zip(starts, ends, strict=True))
    assert all(end % (chunk if strict else 64) == 0 for end in ends[:-1])
    assert len(ends) <= tokens // (chunk - 63) + 2  # chunks are as long as the grid allows
    if strict:
        grid = pos // chunk * chunk
        cold = [end for end in cuts(0, pos + tokens, chunk, True) if end > grid]
        assert cuts(grid, pos + tokens - grid, chunk, True) == cold


def test_a_prompt_from_the_start_is_read_as_ever():
    assert cuts(0, 1300, 512) == [512, 1024, 1300] == cuts(0, 1300, 512, True)
    assert cuts(10, 600, 512) == [512, 610] and cuts(10, 500, 512) == [510]
    assert cuts(10, 500, 512, True) == [510] and cuts(100, 500, 512, True) == [512, 600]


@pytest.mark.parametrize("chunk", [0, -64, 100, 63])
def test_other_chunks_are_refused(chunk):
    m = model()
    with pytest.raises(ValueError, match=f"prefill.chunk_tokens: .* multiple of 64, got {chunk}"):
        Model.build(m.params, m.ops, IDS, chunk=chunk)


def equal(a, b):
    found = [tensors([s.target, s.feed.hidden[0], s.feed.anchor, s.feed.history]) for s in (a, b)]
    return all(torch.equal(x, found[1][name]) for name, x in found[0].items())


@pytest.mark.parametrize("length", [129, 136, 300])
def test_a_prompt_taken_up_on_the_grid_is_the_cold_one_to_the_bit(length):
    """With chunks of another length before it too: the last chunk is read by the same call."""
    m, s = chunked(), sampling()
    cold = prefill(m, Raw(), init_state(m, Raw(), CAPACITY), TOKENS[:length], s, True)
    for at in range(128, length, 128):
        state = prefill(m, Raw(), init_state(m, Raw(), CAPACITY), TOKENS[:at], s, True)
        assert equal(prefill(m, Raw(), state, TOKENS[at:length], s, True), cold)


def test_chunks_read_one_by_one_are_the_prompt():
    """What a caller does who keeps a copy between chunks, or gives up there."""
    m, s = chunked(), sampling()
    for draft in (Raw(), mtp_draft(m, 2), dflash2_draft(m)):
        whole = prefill(m, draft, init_state(m, draft, CAPACITY), TOKENS[:300], s)
        state = init_state(m, draft, CAPACITY)
        for a, b in ((0, 128), (128, 256), (256, 300)):
            state = read(m, draft, state, TOKENS[a:b], 300)
        state = begin(m, state, s)
        for name, x in tensors(whole).items():
            assert torch.equal(x, tensors(state)[name]), name


@pytest.mark.parametrize("tail", [1, 7, 8, 16])
def test_a_tail_as_long_as_a_step_is_prefilled(tail, monkeypatch):
    """The loop says what is read; no row count turns a prompt's tokens into a verify step."""
    m, s, draft = chunked(), sampling(), mtp_draft(chunked(), 7)
    state = prefill(m, draft, init_state(m, draft, CAPACITY), TOKENS[:128], s)
    seen, reading = [], text.prefill

    def spy(params, state, tokens, *rest):
        seen.append(len(tokens))
        return reading(params, state, tokens, *rest)

    monkeypatch.setattr(loop.text, "prefill", spy)
    monkeypatch.setattr(loop.text, "step", None)
    state = prefill(m, draft, state, TOKENS[128 : 128 + tail], s)
    assert seen == [tail] and int(state.target.pos) == 128 + tail and int(state.target.pending) == 0


class Seen:
    """Which positions a draft was given, and with what."""

    def __init__(self, draft, monkeypatch):
        self.given, self.taps = [], []
        prime, reading = type(draft).prime, text.prefill

        def primed(this, state, tokens, hidden, taps, pos):
            assert len(tokens) == len(hidden) == len(taps)
            self.given += range(pos, pos + len(tokens))
            return prime(this, state, tokens, hidden, taps, pos)

        def read(*args):
            out = reading(*args)
            self.taps.append(tuple(out[1].shape))
            return out

        monkeypatch.setattr(type(draft), "prime", primed)
        monkeypatch.setattr(loop.text, "prefill", read)


@pytest.mark.parametrize("length", [20, 23, 24, 128, 140, 300])
def test_a_block_draft_is_given_what_its_window_sees(length, monkeypatch):
    """Nothing is computed of other tokens, and its drafts are those of one that saw them all."""
    m, s = chunked(64), sampling()
    draft = dflash2_draft(m)
    every = dataclasses.replace(draft)
    width = len(DRAFT.taps) * DRAFT.d_model

    def ring(state):
        """What is in sight of the anchor; the rest of the ring is overwritten with noise."""
        size = state.draft.ring[0].k.shape[2]
        hidden = torch.ones(size, dtype=torch.bool)
        hidden[[p % size for p in range(max(0, length - DRAFT.window + 1), length)]] = False
        state = copy(state)
        for layer in state.draft.ring:
            for x in (layer.k, layer.v):
                x[:, :, hidden] = 50.0
        return state

    full = init_state(m, every, CAPACITY)
    for a in range(0, length, 64):
        tokens = TOKENS[a : min(a + 64, length)]
        hidden, taps, target = text.prefill(m.params, full.target, tokens, m.ops, draft.taps)
        kept = every.prime(full.draft, tokens, hidden, taps, a)
        full = dataclasses.replace(full, target=target, draft=kept)
    watch = Seen(draft, monkeypatch)
    state = prefill(m, draft, init_state(m, draft, CAPACITY), TOKENS[:length], s)
    assert watch.given == list(range(max(0, length - DRAFT.window + 1), length))
    assert sum(count for count, wide in watch.taps if wide == width) == len(watch.given)
    full = dataclasses.replace(copy(state), draft=full.draft)
    for a, b in zip(ring(state).draft.ring, ring(full).draft.ring, strict=True):
        assert torch.equal(a.k, b.k) and torch.equal(a.v, b.v)
    state = ring(state)
    drafts, _ = draft.propose(state.draft, state.feed, s)
    wanted, _ = every.propose(full.draft, full.feed, s)
    assert torch.equal(drafts, wanted)


def test_other_drafts_are_given_everything_or_nothing(monkeypatch):
    m, s = chunked(64), sampling()
    for draft, wanted in ((mtp_draft(m, 2), list(range(150))), (Lookup(4, 1, 3), []), (Raw(), [])):
        with monkeypatch.context() as patch:
            watch = Seen(draft, patch)
            prefill(m, draft, init_state(m, draft, CAPACITY), TOKENS[:150], s)
            assert watch.given == wanted and {wide for _, wide in watch.taps} == {0}
