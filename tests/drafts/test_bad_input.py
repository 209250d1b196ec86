"""Drafts that do not fit are refused by name; what they compute wrongly costs speed, never text."""

import dataclasses

import pytest
import torch

from tests.decode.small import DRAFT, IDS, dflash2_draft, model, mtp_draft, random_draft
from tests.drafts.programs import in_turn
from tests.model.small import copy, random_tokens
from tr.assemble import load_dflash2
from tr.checkpoint.names import dflash2_table
from tr.checkpoint.save import save_from
from tr.decode.generate import generate
from tr.decode.step import init_state, prefill
from tr.drafts.base import BROKEN, Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.tree import replace_tensors, tensors, unchecked

PROMPT = random_tokens(30, seed=9).clamp(max=IDS - 1).tolist()
SETTINGS = [{}, {"temperature": 0.9, "seed": 3}]


@pytest.fixture(autouse=True)
def fast():
    with unchecked(), torch.inference_mode():
        yield


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"vocab": 80}, "for 80 x 128 embeddings, the target has 96 x 128; take the draft"),
        ({"d_model": 64}, "for 96 x 64 embeddings, the target has 96 x 128; take the draft"),
        ({"taps": (0, 4)}, r"reads layers \[0, 4\], the target has 0 .. 3; take the draft"),
        ({"taps": (-1, 2)}, r"reads layers \[-1, 2\], the target has 0 .. 3"),
        ({"taps": ()}, r"reads layers \[\], the target has 0 .. 3"),
        ({"mask_token": 96}, "mask_token_id 96 is not among the 96 tokens; take the draft"),
        ({"mask_token": -1}, "mask_token_id -1 is not among"),
    ],
    ids=str,
)
def test_a_draft_for_another_target_is_refused(tmp_path, change, complaint):
    config = dataclasses.replace(DRAFT, **change)
    params = random_draft(dataclasses.replace(DRAFT, mask_token=0))
    save_from(tmp_path, params, dflash2_table(DRAFT.layers), config.to_hf(4))
    with pytest.raises(ValueError, match=complaint):
        load_dflash2(tmp_path, model().params)
    save_from(tmp_path / "right", params, dflash2_table(DRAFT.layers), DRAFT.to_hf(4))
    assert load_dflash2(tmp_path / "right", model().params).config == DRAFT


def test_more_tokens_than_rows_and_blocks_longer_than_trained():
    block = dflash2_draft(model())
    assert isinstance(block, Dflash2)
    with pytest.raises(ValueError, match="a block of 8 holds 1 .. 7 drafts, got 8"):
        dataclasses.replace(block, tokens=8)
    long = dataclasses.replace(in_turn(block), tail=9)
    with pytest.raises(ValueError, match="at most 15 drafts a step, got 16"):
        init_state(model(), long, 100)


def broken(draft: Draft, bad: float, token: int) -> Draft:
    """The same draft whose logit of one token is no finite number."""
    assert isinstance(draft, Mtp | Dflash2)
    weight = tensors(draft.head)["matrix.weight"].clone()
    weight[token] = bad
    head = replace_tensors(draft.head, {"matrix.weight": weight})
    return dataclasses.replace(draft, head=head)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["mtp", "dflash2", "long"])
def test_broken_logits_cost_speed_alone(name, bad, settings):
    """An infinite weight gives an infinity of either sign: one that may be chosen is refused."""
    m, s = model(), sampling(**settings)
    draft = broken(mtp_draft(m) if name == "mtp" else dflash2_draft(m), bad, token=5)
    strategy = in_turn(draft, "long") if name == "long" else draft
    expected = generate(m, Raw(), PROMPT, s, 12, (), 128).tokens
    counts = generate(m, strategy, PROMPT, s, 12, (), 128)
    assert counts.tokens == expected
    assert counts.broken > 0
    if bad != bad:
        drafted = sum(min(n, 7) for n in counts.proposed)
        assert counts.broken == drafted and sum(counts.accepted) == 0


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_one_broken_row_leaves_the_others(settings):
    """A selector's entry that is no number spoils the rows in which its token is a candidate."""
    m, s = model(dtype=torch.float32), sampling(**settings)
    whole = dflash2_draft(m)
    assert isinstance(whole, Dflash2)
    state = prefill(m, whole, init_state(m, whole, 64), torch.tensor(PROMPT), s)
    clean, _ = whole.propose(copy(state.draft), state.feed, s)
    seen = set()
    for token in clean.tolist():
        book = whole.params.selector.successor.clone()
        book[token] = torch.nan
        params = replace_tensors(whole.params, {"selector.successor": book})
        draft = dataclasses.replace(whole, params=params)
        drafts, _ = draft.propose(copy(state.draft), state.feed, s)
        at = drafts.tolist().index(BROKEN)
        assert drafts[:at].tolist() == clean[:at].tolist() and token not in clean[:at].tolist()
        assert clean[at] == token or at < clean.tolist().index(token)
        assert ((drafts == BROKEN) | ((drafts >= 0) & (drafts < IDS))).all()
        seen.add(at)
    assert len(seen) > 1


def test_a_broken_chain_leaves_nothing_in_its_cache():
    """Keys that were no numbers lie past the text, and are written anew before they are read."""
    m, s = model(dtype=torch.float32), sampling()
    whole = mtp_draft(m)
    assert isinstance(whole, Mtp)
    norm = torch.full_like(whole.params.norm, torch.nan)
    bad = dataclasses.replace(whole, params=replace_tensors(whole.params, {"norm": norm}))
    state = prefill(m, whole, init_state(m, whole, 64), torch.tensor(PROMPT), s)
    clean, _ = whole.propose(copy(state.draft), state.feed, s)
    drafts, kept = bad.propose(copy(state.draft), state.feed, s)
    assert drafts.tolist() == [BROKEN] * 7
    assert any(t.isnan().any() for t in tensors(kept.cache).values())
    again, _ = whole.propose(kept, state.feed, s)
    assert again.tolist() == clean.tolist()
