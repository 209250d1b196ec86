"""Ends of windows and tables, prompts that are refused, logits that are no numbers."""

import dataclasses
import functools

import pytest
import torch

from tests.decode.scripted import Scripted
from tests.decode.small import DRAFT, IDS, dflash2_draft, model, mtp_draft
from tests.model.small import random_tokens
from tr.decode.generate import generate
from tr.decode.step import init_state
from tr.decode.stream import Counts, advance, open_stream
from tr.drafts.base import Draft
from tr.drafts.lookup import Lookup
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.nn.formats.kv.plain import Plain
from tr.tree import replace_tensors, tensors, unchecked

CAPACITY, TABLE = 64, 48  # the target's positions, and those of the shorter draft
SHORT = dataclasses.replace(DRAFT, max_positions=TABLE)
NAMES = ("mtp", "dflash2", "dflash2 with a short table", "lookup", "oracle", "scripted")


def draft(name: str, truth: list[int]) -> Draft:
    m = model(positions=CAPACITY)
    if name == "mtp":
        return mtp_draft(m)
    if name.startswith("dflash2"):
        return dflash2_draft(m, DRAFT if name == "dflash2" else SHORT)
    if name == "lookup":
        return Lookup(7, 1, 3)
    if name == "oracle":
        return Oracle(torch.tensor(truth), 7, 1.0)
    return Scripted(torch.tensor(truth), lambda pos: (7, 7), dflash2_draft(m, SHORT))


def write(strategy: Draft, prompt: list[int], s) -> Counts:
    return generate(model(positions=CAPACITY), strategy, prompt, s, 100, (), CAPACITY)


@functools.cache
def raw(length: int, heat: float) -> tuple[list[int], Counts]:
    prompt = random_tokens(length, seed=length).clamp(max=IDS - 1).tolist()
    with unchecked():
        return prompt, write(Raw(), prompt, sampling(heat, seed=4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_the_window_ends_at_its_last_position(name, heat):
    """Every row up to the last position is used, and no draft reaches past it."""
    s = sampling(heat, seed=4)
    for length in (20, *range(CAPACITY - 13, CAPACITY + 1)):
        prompt, expected = raw(length, heat)
        assert expected.stop == "window" and expected.steps == CAPACITY - length
        with unchecked():
            counts = write(draft(name, prompt + expected.tokens), prompt, s)
        assert counts.tokens == expected.tokens and counts.stop == "window"
        # the last token needs no room of its own: nothing is to be read after it
        assert length + len(counts.tokens) == CAPACITY + 1
        place = length
        for kept, proposed in zip(counts.kept, counts.proposed, strict=True):
            assert place + proposed < CAPACITY
            place += kept


def test_speculation_is_off_past_a_draft_s_own_table():
    prompt = random_tokens(20).clamp(max=IDS - 1).tolist()
    expected = write(Raw(), prompt, sampling())
    strategy = draft("scripted", prompt + expected.tokens)
    assert strategy.reach == TABLE - DRAFT.block + 1
    counts = write(strategy, prompt, sampling())
    assert counts.tokens == expected.tokens
    place = len(prompt)
    for kept, proposed in zip(counts.kept, counts.proposed, strict=True):
        assert proposed == max(0, min(7, strategy.reach - place - 1))
        place += kept
    assert counts.proposed[0] == 7 and counts.proposed[-10:] == [0] * 10


def test_prompts_that_are_refused():
    m = model(positions=CAPACITY)
    for strategy in (Raw(), draft("dflash2", [])):
        with pytest.raises(ValueError, match=r"at least 1 token, got none"):
            open_stream(m, strategy, [], sampling(), CAPACITY)
        with pytest.raises(ValueError, match=r"65 tokens exceed the window of 64; .*kv.capacity"):
            open_stream(m, strategy, [1] * (CAPACITY + 1), sampling(), CAPACITY)
    for capacity in (0, CAPACITY + 1):
        with pytest.raises(ValueError, match=rf"1 .. 64 tokens .*got {capacity}"):
            open_stream(m, Raw(), [1], sampling(), capacity)


def test_a_step_takes_at_most_16_rows():
    with pytest.raises(ValueError, match="at most 15 drafts a step, got 16"):
        init_state(model(), Lookup(16, 1, 3), 100)
    assert init_state(model(), Lookup(15, 1, 3), 100).feed.hidden.shape[0] == 16


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_stop_the_text(bad):
    """They never become a token: neither the prefill's first nor a step's."""
    m, prompt = model(), list(range(1, 20))
    broken = replace_tensors(m.params, {"norm": torch.full_like(m.params.norm, bad)})
    with pytest.raises(ValueError, match="logits at position 19 are not finite"):
        open_stream(dataclasses.replace(m, params=broken), Raw(), prompt, sampling(), 64)
    stream = open_stream(m, mtp_draft(m), prompt, sampling(), 64)
    with torch.inference_mode():
        for cache in stream.state.target.layers:
            if isinstance(cache, Plain):
                cache.v[:, 3] = bad
    before = stream.state.feed.history.clone()
    counts = Counts()
    with pytest.raises(ValueError, match="logits at position 20 are not finite.*kernel=reference"):
        list(advance(stream, counts, 8))
    assert counts.tokens == [] and stream.pos == 19
    assert torch.equal(stream.state.feed.history[:20], before[:20])


def test_padding_rows_may_hold_anything():
    """Only the ids of real tokens are looked at: by the check and by the choice."""
    m, prompt = model(), list(range(1, 20))
    weight = tensors(m.params)["lm_head.weight"].clone()
    weight[IDS:] = torch.nan
    padded = dataclasses.replace(m, params=replace_tensors(m.params, {"lm_head.weight": weight}))
    for strategy in (Raw(), mtp_draft(padded), dflash2_draft(padded)):
        for s in (sampling(), sampling(0.9, top_k=20, seed=1)):
            a, b = (generate(x, strategy, prompt, s, 12, (), 64).tokens for x in (m, padded))
            assert a == b and max(a) < IDS
