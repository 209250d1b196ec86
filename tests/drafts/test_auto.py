"""Which prompts are Chinese, Japanese or Korean, and what a conversation is opened with."""

import pytest

from tests.decode.embedded import CAPACITY, Case, model, tokenizer
from tests.decode.small import dflash2_draft
from tests.decode.small import model as small
from tr.assemble import assemble
from tr.config import AutoDraft
from tr.decode.generate import generate
from tr.decode.stream import open_stream
from tr.drafts.adaptive import Adaptive, Conversation
from tr.drafts.auto import Auto, cjk_share
from tr.drafts.base import Draft, Seen
from tr.drafts.chain import Chain
from tr.drafts.dflash2_lookup import Dflash2Lookup
from tr.drafts.lookup import Lookup
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.overrides import load
from tr.tree import unchecked


@pytest.mark.parametrize(
    "text, share",
    [
        ("", 0.0),
        (" \n\t", 0.0),
        ("plain text, naïve café; русский текст, עברית", 0.0),
        ("中文 和 。", 1.0),
        ("ひらがなカタカナ漢字", 1.0),
        ("한국어 문장", 1.0),
        ("abc 中", 0.25),
        ("ＡＢ ab", 0.5),
        ("𠀀𠀁", 1.0),
        ("🙂 ok", 0.0),
    ],
)
def test_share_of_characters(text, share):
    assert cjk_share(text) == share


def test_the_prompt_decides_at_the_threshold():
    a, b = Lookup(3, 2, 4), Raw()
    auto: Draft = Auto(a, b, 0.25, lambda ids: "".join(map(chr, ids)))
    assert auto.open([ord(c) for c in "abc中"]) is a
    assert auto.open([ord(c) for c in "abcd中"]) is b
    assert auto.open([]) is b and Auto(a, b, 0.0, lambda ids: "").open([]) is a
    inner = Auto(auto, b, 0.0, lambda ids: "")
    assert inner.open([ord("中")]) is a  # opened to the end: what is left decides nothing more


def test_before_it_is_opened_it_stands_for_the_other_one():
    """Its rows and taps are what a report names; a state made without opening is that one's too."""
    m = small()
    other = dflash2_draft(m)
    auto = Auto(Raw(), other, 2.0, lambda ids: "")
    assert (auto.rows, auto.taps, auto.reach) == (other.rows, other.taps, other.reach)
    assert auto.pick([Seen(8, 8)]) == (other, 8)
    assert type(auto.init_state(64)) is type(other.init_state(64))


@pytest.mark.parametrize(
    "family, chosen, heat", [("chinese", Mtp, 0.8), ("essay", Dflash2Lookup, 0.0)]
)
def test_the_text_is_raw_s_and_the_loop_runs_the_chosen_one(family, chosen, heat):
    config = load(["run=x", "draft=auto", "draft.adapt=false"])
    made = assemble(config)
    auto, s = made.draft(config), sampling(heat, seed=3)
    prompt = Case(family, 0, "greedy").prompt
    with unchecked():
        assert type(open_stream(made.model, auto, prompt, s, CAPACITY).draft) is chosen
        counts = generate(made.model, auto, prompt, s, 24, (), CAPACITY)
        assert counts.tokens == generate(model(), Raw(), prompt, s, 24, (), CAPACITY).tokens
    assert auto.name == "auto" and sum(counts.accepted) > 0


def test_both_names_and_the_threshold_are_settings():
    args = ["run=x", "draft=auto", "draft.cjk=lookup", "draft.other=chain", "draft.share=0.5"]
    config = load([*args, "draft.choices.chain.after=2", "draft.adapt=false"])
    auto = assemble(config).draft(config)
    assert isinstance(auto, Auto) and isinstance(auto.cjk, Lookup) and auto.share == 0.5
    assert isinstance(auto.other, Chain) and auto.other.after == 2 and auto.other.name == "chain"
    assert auto.text(tokenizer().encode("some text 中")) == "some text 中"
    short = [{"role": "user", "content": "请继续写下去。"}]
    assert auto.open(tokenizer().chat(short, enable_thinking=False)) is auto.other  # half is markup


def test_a_short_chat_is_judged_without_special_tokens():
    config = load(["run=x", "draft=auto", "draft.adapt=false"])
    auto = assemble(config).draft(config)
    for content, chosen in (("请继续写下去。", Mtp), ("Please go on.", Dflash2Lookup)):
        ids = tokenizer().chat([{"role": "user", "content": content}], enable_thinking=False)
        assert type(auto.open(ids)) is chosen


def test_random_weights_have_no_text_to_go_by():
    config = load(["run=x", "draft=auto", "weights=random", "model=smoke"])
    with pytest.raises(ValueError, match="weights=random has no tokenizer"):
        assemble(config).draft(config)


CPU = ["run=x", "draft=auto", "device=cpu"]


@pytest.mark.parametrize("family, heat", [("chinese", 0.8), ("code", 0.0), ("copy", 0.8)])
def test_step_by_step_the_text_is_raw_s_and_several_programs_run(family, heat):
    config = load(CPU)
    made = assemble(config)
    auto, s, case = made.draft(config), sampling(heat, seed=3), Case(family, 1, "greedy")
    with unchecked():
        draft = open_stream(made.model, auto, case.prompt, s, CAPACITY).draft
        counts = generate(made.model, auto, case.prompt, s, 48, (), CAPACITY)
        expected = generate(model(), Raw(), case.prompt, s, 48, (), CAPACITY)
    assert isinstance(draft, Conversation) and counts.tokens == expected.tokens
    main = draft.of.main
    assert type(main) is (Mtp if family == "chinese" else Dflash2Lookup)
    assert (draft.of.rival is None) == (family == "chinese")
    copied = [ran for ran in counts.ran if ran.startswith("copy")]
    assert copied and (family == "copy" or len(copied) < counts.steps)


def test_paces_by_device_and_weights():
    chosen = load(CPU).draft
    assert isinstance(chosen, AutoDraft)
    assert chosen.pace("cpu", "cpu", "embedded") is chosen.paces["cpu"]
    assert chosen.pace("h200", "cuda", "embedded") is chosen.paces["cuda_embedded"]
    assert chosen.pace("h200", "cuda", "random") is chosen.paces["cuda"]
    with pytest.raises(ValueError, match="none of tpu_random, xla_random, tpu, xla;"):
        chosen.pace("tpu", "xla", "random")
    own = ["draft.paces.cpu.dflash2=3", "draft.paces.cpu.copy={5: 1}", "draft.paces.cpu.rival=''"]
    config = load([*CPU, *own])
    auto = assemble(config).draft(config)
    assert isinstance(auto, Auto) and isinstance(auto.other, Adaptive)
    assert auto.other.costs.dflash2 == 3 and auto.other.rival is None and not auto.other.late
    assert dict(auto.other.costs.copy)[5] == 1 and auto.other.rows == 16


@pytest.mark.parametrize(
    "args, said",
    [
        ("draft.paces.cpu.rival=mtpp", "draft.paces.cpu.rival 'mtpp'"),
        ("draft.paces.cpu.copy={17: 1}", "copy: rows must lie in 2..16, got 17"),
        ("draft.paces.cpu.mtp=0", "cost must be positive, got 0"),
    ],
)
def test_paces_that_cannot_be(args, said):
    with pytest.raises(ValueError, match=said):
        load([*CPU, args])


def test_a_strategy_without_a_state_is_not_stepped_through():
    config = load([*CPU, "draft.other=lookup", "draft.paces.cpu.rival=lookup"])
    auto = assemble(config).draft(config)
    assert isinstance(auto, Auto) and isinstance(auto.other, Lookup)
    config = load([*CPU, "draft.paces.cpu.rival=lookup"])
    auto = assemble(config).draft(config)
    assert isinstance(auto, Auto) and isinstance(auto.other, Adaptive)
    assert auto.other.rival is None
