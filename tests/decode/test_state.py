"""Whatever was proposed, accepted and cut, a state is that of decoding the same text one by one."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode.scripted import Scripted
from tests.decode.small import DRAFT, IDS, dflash2_draft, model, mtp_draft
from tests.model.small import copy, meaning, random_tokens
from tr.decode.generate import generate
from tr.decode.step import State, init_state, keep, prefill, step
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling, sampling
from tr.tree import unchecked

CAPACITY, STEPS, BLOCK = 256, 6, 8
PROMPTS = (1, 40, 100)  # the last one is longer than the draft's ring
SETTINGS = (sampling(), sampling(0.8, seed=7))


@pytest.fixture(autouse=True, scope="module")
def fast():
    with unchecked():
        yield


@functools.cache
def inner(name: str, variant: str) -> Draft:
    m = model(variant)
    return dflash2_draft(m) if name == "dflash2" else mtp_draft(m)


@functools.cache
def truth(prompt: int, setting: int, variant: str) -> torch.Tensor:
    tokens = random_tokens(prompt, seed=prompt).clamp(max=IDS - 1).tolist()
    made = generate(
        model(variant), Raw(), tokens, SETTINGS[setting], STEPS * BLOCK + 2, (), CAPACITY
    )
    return torch.tensor(tokens + made.tokens)


@functools.cache
def start(prompt: int, setting: int, variant: str, name: str) -> State:
    m, draft = model(variant), inner(name, variant)
    wrapped = Scripted(torch.tensor([0]), lambda pos: (0, 0), draft)
    tokens = truth(prompt, setting, variant)[:prompt]
    return prefill(m, wrapped, init_state(m, wrapped, CAPACITY), tokens, SETTINGS[setting])


def standing(draft: Draft, state: State, sampling: Sampling) -> dict[str, torch.Tensor]:
    """What a decoding state stands for, by name; the draft's part as its next proposal reads it."""
    state = copy(state)
    feed, pos, count = state.feed, int(state.feed.pos), int(state.feed.count)
    out = {f"target.{name}": t for name, t in meaning(state.target).items()}
    out |= {
        "anchor": feed.anchor,
        "pos": feed.pos,
        "history": feed.history[: pos + 1],
        "hidden": feed.hidden[count - 1],
        "taps": feed.taps[count - 1],
    }
    _, kept = draft.propose(state.draft, feed, sampling)
    if isinstance(draft, Dflash2):
        size = kept.ring[0].k.shape[2]
        slots = torch.arange(max(0, pos - draft.window + 1), pos) % size
        for i, ring in enumerate(kept.ring):
            out |= {f"ring {i}.k": ring.k[:, :, slots], f"ring {i}.v": ring.v[:, :, slots]}
    else:
        out |= {"mtp.k": kept.cache.k[:, 1 : pos + 1], "mtp.v": kept.cache.v[:, 1 : pos + 1]}
    return out


def assert_same(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], note: str = ""
) -> None:
    assert got.keys() == want.keys()
    for key in got:
        if key.startswith("ring"):  # a draft's own rounding may depend on a row's place
            torch.testing.assert_close(
                got[key], want[key], rtol=0.02, atol=0.02, msg=f"{note} {key}"
            )
        else:
            assert torch.equal(got[key], want[key]), (note, key)


def one_step(
    variant: str,
    name: str,
    state: State,
    text: torch.Tensor,
    s: Sampling,
    proposed: int,
    right: int,
) -> tuple[int, State]:
    draft = Scripted(text, lambda pos: (proposed, right), inner(name, variant))
    rows = max(2, proposed + 1)  # at least one draft: a step of one row does not ask for any
    result, logits, state = step(model(variant), draft, state, s, rows)
    assert len(logits) == rows and result[0] == right + 1
    assert torch.equal(result[1 : right + 2], text[int(state.feed.pos) - right :][: right + 1])
    return right + 1, state


plans = st.integers(0, BLOCK - 1).flatmap(
    lambda proposed: st.integers(0, proposed).flatmap(
        lambda right: st.tuples(
            st.just(proposed), st.just(right), st.just(right + 1) | st.integers(1, right + 1)
        )
    )
)


@settings(max_examples=25)
@given(
    prompt=st.sampled_from(PROMPTS),
    steps=st.lists(plans, min_size=1, max_size=STEPS),
    setting=st.sampled_from([0, 1]),
    variant=st.sampled_from(["tile", "reference"]),
    name=st.sampled_from(["dflash2", "mtp"]),
)
@torch.inference_mode()
def test_any_sequence_of_accepted_counts_and_cuts(prompt, steps, setting, variant, name):
    s, text = SETTINGS[setting], truth(prompt, setting, variant)
    spec = copy(start(prompt, setting, variant, name))
    alone = copy(spec)
    for proposed, right, cut in steps:
        made, spec = one_step(variant, name, spec, text, s, proposed, right)
        if cut < made:
            spec = keep(spec, torch.tensor(cut))
        for _ in range(cut):
            _, alone = one_step(variant, name, alone, text, s, 0, 0)
    assert_same(standing(inner(name, variant), spec, s), standing(inner(name, variant), alone, s))


@pytest.mark.parametrize("variant", ["tile", "reference"])
@pytest.mark.parametrize("name", ["dflash2", "mtp"])
@torch.inference_mode()
def test_every_accepted_count_with_every_cut(name, variant):
    """0 .. 7 of 7 drafts accepted, cut after 1 .. all of the block's tokens, at once or in turn."""
    s, text, draft = SETTINGS[1], truth(40, 1, variant), inner(name, variant)
    state = copy(start(40, 1, variant, name))
    alone = []
    for _ in range(BLOCK):
        _, state = one_step(variant, name, state, text, s, 0, 0)
        alone.append(standing(draft, state, s))
    for right in range(BLOCK):
        fresh = copy(start(40, 1, variant, name))
        _, block = one_step(variant, name, fresh, text, s, BLOCK - 1, right)
        assert_same(standing(draft, block, s), alone[right], f"{right}, whole")
        for cut in range(right, 0, -1):  # each cut on top of the last
            block = keep(block, torch.tensor(cut))
            assert_same(standing(draft, block, s), alone[cut - 1], f"{right}, cut to {cut}")


def test_the_prompts_cover_the_ring():
    draft = inner("dflash2", "tile")
    size = draft.init_state(CAPACITY).ring[0].k.shape[2]
    assert DRAFT.window < size < max(PROMPTS)
