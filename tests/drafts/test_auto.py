"""Which prompts are Chinese, Japanese or Korean, and what a conversation is opened with."""

import pytest

from tests.decode.embedded import CAPACITY, Case, model, tokenizer
from tests.decode.small import dflash2_draft
from tests.decode.small import model as small
from tr.assemble import assemble
from tr.decode.generate import generate
from tr.decode.stream import open_stream
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
    config = load(["run=x", "draft=auto"])
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
    config = load([*args, "draft.choices.chain.after=2"])
    auto = assemble(config).draft(config)
    assert isinstance(auto, Auto) and isinstance(auto.cjk, Lookup) and auto.share == 0.5
    assert isinstance(auto.other, Chain) and auto.other.after == 2 and auto.other.name == "chain"
    assert auto.text(tokenizer().encode("some text 中")) == "some text 中"
    short = [{"role": "user", "content": "请继续写下去。"}]
    assert auto.open(tokenizer().chat(short, enable_thinking=False)) is auto.other  # half is markup


def test_a_short_chat_is_judged_without_special_tokens():
    config = load(["run=x", "draft=auto"])
    auto = assemble(config).draft(config)
    for content, chosen in (("请继续写下去。", Mtp), ("Please go on.", Dflash2Lookup)):
        ids = tokenizer().chat([{"role": "user", "content": content}], enable_thinking=False)
        assert type(auto.open(ids)) is chosen


def test_random_weights_have_no_text_to_go_by():
    config = load(["run=x", "draft=auto", "weights=random", "model=smoke"])
    with pytest.raises(ValueError, match="weights=random has no tokenizer"):
        assemble(config).draft(config)
