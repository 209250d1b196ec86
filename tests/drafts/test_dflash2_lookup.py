"""The tail goes on where the block ends; long steps follow saturated ones; the text is raw's."""

from dataclasses import dataclass

import pytest
import torch

from tests.decode.embedded import CAPACITY, Case, draft, model
from tests.decode.small import DRAFT, IDS, dflash2_draft
from tests.decode.small import model as small
from tests.drafts.programs import in_turn
from tests.model.small import random_tokens
from tr.decode.generate import generate
from tr.drafts.base import BROKEN, MISSING, Draft, Feed, Full, Seen
from tr.drafts.dflash2 import Dflash2
from tr.drafts.dflash2_lookup import Dflash2Lookup
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.tree import unchecked

PAGE = list(range(20, 60))
TOKENS = 81


@pytest.fixture(autouse=True)
def fast():
    with unchecked(), torch.inference_mode():
        yield


@dataclass(frozen=True, eq=False)
class Said(Full):
    """A block of given tokens."""

    drafts: tuple[int, ...]
    rows: int = 8
    tokens: int = 7

    def propose(self, state, feed, s):
        return torch.tensor(self.drafts), state


def drafts(text: list[int], block: list[int], trust: int = 99, **settings) -> list[int]:
    """What is proposed after `text`; the places past it hold a decoy that must not be found."""
    decoy = [*block, 98, 98, 98] * 5
    anchor, zero = torch.tensor(text[-1]), torch.zeros(1, 1)
    pos = torch.tensor(len(text) - 1)
    feed = Feed(
        anchor=anchor,
        pos=pos,
        count=torch.tensor(1),
        hidden=zero,
        taps=zero,
        history=torch.tensor(text + decoy),
    )
    own = {"tail": 8, "ngram_min": 2, "ngram_max": 16, "saturated": 2, **settings}
    strategy = Dflash2Lookup(Said(tuple(block)), trust=trust, **own)  # type: ignore[arg-type]
    found, _ = strategy.propose(None, feed, sampling())  # type: ignore[arg-type]
    assert found.shape == (7 + own["tail"],)
    return found.tolist()


def test_the_tail_continues_the_block():
    """Its match is of the text and the block: where the block leaves the copy, the tail does."""
    text = [*PAGE, *PAGE[:10]]
    assert drafts(text, PAGE[10:17]) == PAGE[10:25]
    assert drafts(text, PAGE[30:37]) == [*PAGE[30:40], *PAGE[:5]]
    assert drafts(text, PAGE[10:17], tail=3) == PAGE[10:20]


def test_a_tail_that_runs_into_the_block_takes_its_tokens():
    text = [1, 2, 3, *[5, 6, 7] * 2]
    assert drafts(text, [5, 6, 7, 5, 6, 7, 5]) == [5, 6, 7, 5, 6, 7, 5, 6, 7, 5, *[MISSING] * 5]


def test_nothing_to_look_up():
    assert drafts([1, 2, 3], [4, 5, 6, 7, 8, 9, 10])[7:] == [MISSING] * 8
    text = [*PAGE, *PAGE[:10]]
    assert drafts(text, PAGE[10:17], ngram_min=18, ngram_max=20)[7:] == [MISSING] * 8


def test_a_long_match_of_the_text_replaces_the_block():
    text, other = [*PAGE, *PAGE[:10]], [91, 92, 93, 94, 95, 96, 97]
    assert drafts(text, other, trust=10) == PAGE[10:25]
    assert drafts(text, other, trust=11) == [*other, *[MISSING] * 8]
    # the match ends with the text: what it does not know stays the block's
    assert drafts([*range(9), *range(9)], other, trust=9) == [*range(9), *[MISSING] * 6]
    assert drafts([8] * 12, other, trust=9) == [8, *other[1:], *[MISSING] * 8]


def test_a_broken_draft_is_never_matched_nor_replaced_by_nonsense():
    block = [30, 31, BROKEN, BROKEN, BROKEN, BROKEN, BROKEN]
    found = drafts([*PAGE, *PAGE[:10]], block)
    assert found == [*block, *[MISSING] * 8]


def test_long_rows_only_after_saturation():
    block = dflash2_draft(small())
    assert isinstance(block, Dflash2)
    strategy = Dflash2Lookup(block, 8, 2, 4, 3, saturated=2)
    full, most, long, cut = Seen(8, 8), Seen(8, 7), Seen(16, 16), Seen(16, 15)
    for seen in ([], [full], [full, most], [most, full], [full, full, most], [long, cut, full]):
        assert strategy.pick(seen) == (block, 8), seen
    for short in (Seen(1, 1), Seen(5, 5)):  # at a window's end, not saturated
        assert strategy.pick([short, full]) == strategy.pick([full, short]) == (block, 8)
    for seen in ([full, full], [most, full, full], [full, long], [long, long]):
        assert strategy.pick(seen) == (strategy, 16), seen
    always = Dflash2Lookup(block, 8, 2, 4, 3, saturated=0)
    assert always.pick([]) == always.pick([most]) == (always, 16)


@pytest.mark.parametrize("setting", ["greedy", "0.5"])
def test_the_embedded_model_s_copy_is_raw_s(setting):
    """And a greedy step gives at least 1.4 times the block's tokens."""
    case = Case("copy", 1, setting)
    block = draft("dflash2", case)
    assert isinstance(block, Dflash2)
    counts, plain, expected = (
        generate(model(), strategy, case.prompt, case.sampling, TOKENS, (), CAPACITY)
        for strategy in (Dflash2Lookup(block, 8, 2, 16, 12, 2), block, Raw())
    )
    assert counts.tokens == plain.tokens == expected.tokens
    steps = [*zip(counts.proposed, counts.accepted, strict=True)]
    assert set(counts.proposed) == {7, 15}
    for i, (proposed, _) in enumerate(steps):
        saturated = i > 1 and all(n == m >= 7 for n, m in steps[i - 2 : i])
        assert (proposed == 15) == saturated, i
    if case.setting == "greedy":
        assert counts.tokens_per_step > 1.4 * plain.tokens_per_step


@pytest.mark.parametrize(
    "length, heat", [(1, 0.9), (17, 0.0), (64, 0.0), (64, 0.9), (127, 0.9), (128, 0.0)]
)
def test_every_program_in_turn_is_exact(length, heat):
    m, s = small(), sampling(heat, seed=7)
    prompt = random_tokens(length, seed=length).clamp(max=IDS - 1).tolist()
    expected = generate(m, Raw(), prompt, s, 24, (), 192).tokens
    for programs in (("long",), ("block", "long", 11)):
        strategy = in_turn(dflash2_draft(m), *programs)
        counts = generate(m, strategy, prompt, s, 24, (), 192)
        assert counts.tokens == expected
        assert max(counts.proposed) == 15


@pytest.mark.parametrize("table", [48, DRAFT.max_positions])
def test_windows_and_tables_end(table):
    """A target of 64 positions, a draft of 48 or more: long steps shrink, and no index leaves."""
    m, s = small(positions=64), sampling()
    config = DRAFT if table > 64 else type(DRAFT)(**{**vars(DRAFT), "max_positions": table})
    for length in (49, 56, 64):
        prompt = random_tokens(length, seed=length).clamp(max=IDS - 1).tolist()
        expected = generate(m, Raw(), prompt, s, 100, (), 64)
        strategy: Draft = in_turn(dflash2_draft(m, config))
        counts = generate(m, strategy, prompt, s, 100, (), 64)
        assert counts.tokens == expected.tokens and counts.stop == "window"
        place = length
        for kept, proposed in zip(counts.kept, counts.proposed, strict=True):
            assert place + proposed < min(64, max(place + 1, strategy.reach))
            place += kept
