"""Strategies by name: the group's choices with values of their own, the run's where it is named."""

import pytest
import torch

from experiments.strategies import ORACLES, chosen, drafting, runnable, strategies
from tr.assemble import assemble
from tr.config import AutoDraft, LookupDraft, MtpDraft, OracleDraft
from tr.drafts.lookup import Lookup
from tr.drafts.oracle import Oracle
from tr.overrides import load


@pytest.fixture(scope="module")
def config():
    own = ("draft=lookup", "draft.tokens=3", "seed=7", "device=cpu")
    return load(["run=x", "model=smoke", "weights=random", *own])


def test_an_entry_is_a_choice_and_its_values(config):
    plain, longer = chosen(config, "mtp"), chosen(config, "mtp tokens=5 head.kind=first")
    assert isinstance(plain, MtpDraft) and plain.tokens == 3 and plain.head.kind == "full"
    assert isinstance(longer, MtpDraft) and longer.tokens == 5 and longer.head.kind == "first"
    assert isinstance(chosen(config, "auto"), AutoDraft)
    assert chosen(config, "lookup") is config.draft
    other = chosen(config, "lookup tokens=9")
    assert isinstance(other, LookupDraft) and other.tokens == 9


@pytest.mark.parametrize(
    "entry, said",
    [
        ("dflahs2", " 'dflahs2'; did you mean 'dflash2'"),
        ("mtp token=3", ": 'mtp token=3': unknown key of MtpDraft 'token'; did you mean 'tokens'"),
        ("mtp tokens=33", ": 'mtp tokens=33': draft.tokens must lie in 1..15, got 33"),
        ("", " ''; did you mean"),
    ],
)
def test_a_mistake_names_its_entry(config, entry, said):
    with pytest.raises(ValueError, match=f"params.strategies{said}"):
        chosen(config, entry)


def test_each_is_made_once_and_oracles_for_a_text(config):
    made = assemble(config)
    kept = strategies(["raw", "lookup", ORACLES[0], "lookup"], config, made)
    assert list(kept) == ["raw", "lookup", ORACLES[0]]
    here = torch.device("cpu")
    draft = kept["lookup"].draft([1], [2], here)
    assert draft is kept["lookup"].made and isinstance(draft, Lookup) and draft.rows == 4
    assert [kept[name].plain for name in kept] == [True, False, False]
    oracle = kept[ORACLES[0]].draft([1, 2], [3, 4], here)
    assert isinstance(oracle, Oracle) and oracle.text.tolist() == [1, 2, 3, 4]
    assert (oracle.rate, oracle.seed) == (0.3, 7)


def test_every_strategy_but_raw_and_oracle_drafts():
    assert {"mtp", "dflash2", "lookup"} <= set(drafting())
    assert not {"raw", "oracle"} & set(drafting())
    assert isinstance(chosen(load(["run=x"]), "oracle"), OracleDraft)


def test_without_a_tokenizer_auto_is_left_out_unless_asked_for(config):
    random, embedded = assemble(config), assemble(load(["run=x", "device=cpu"]))
    assert runnable([], drafting(), embedded) == (drafting(), ())
    names, (said,) = runnable([], drafting(), random)
    assert set(drafting()) - set(names) == {"auto"} and "draft=auto was left out" in said
    assert runnable(["auto", "mtp"], drafting(), random) == (["auto", "mtp"], ())
