"""A rule gives one text, whatever the step; masks and logarithms come from the rows themselves."""

import dataclasses

import pytest
import torch
from torch import Tensor

from kernels.sample import gumbel
from tests.decode.embedded import CAPACITY, CASES, draft, model
from tr.decode.generate import answer, speak
from tr.decode.logprobs import Logprob, prompt_logprobs
from tr.decode.rule import BITS, mask_of, mask_without, masked
from tr.decode.session import Cancelled, Sessions
from tr.decode.step import Model
from tr.decode.stream import Counts, open_stream
from tr.drafts.base import Draft
from tr.drafts.raw import Raw
from tr.model import text
from tr.model.sampling import Sampling, sampling
from tr.tree import unchecked

TOKENS = 24
END = 514  # <|im_end|>
SETTINGS = {
    "greedy": sampling(),
    "cut": sampling(0.8, top_k=12, top_p=0.9, seed=3),
    "penalties": sampling(0.6, seed=4, frequency_penalty=0.4, repetition_penalty=1.2),
}


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


class Odd:
    """Refuses two tokens of eleven, others at every place; ends the text at `last`."""

    def __init__(self, ids: int, last: int = 1 << 30) -> None:
        self.ids, self.last, self.taken = ids, last, []

    @property
    def done(self) -> bool:
        return len(self.taken) >= self.last

    def _allowed(self, token: int) -> bool:
        before = self.taken[-1] if self.taken else 0
        return (token * 7919 + before * 31 + len(self.taken)) % 11 > 1

    def push(self, token: int) -> bool:
        if not self._allowed(token):
            return False
        self.taken.append(token)
        return True

    def mask(self) -> Tensor:
        return mask_of(filter(self._allowed, range(self.ids)), self.ids)


def say(
    m: Model,
    d: Draft,
    s: Sampling,
    rule: Odd | None,
    prompt: list[int],
    tokens: int = TOKENS,
    eos: tuple[int, ...] = (),
) -> Counts:
    counts = Counts()
    for _ in answer(m, d, prompt, s, tokens, eos, CAPACITY, counts, rule=rule):
        pass
    return counts


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_rule_gives_every_draft_the_text_of_raw_decoding(setting):
    case, m, s = CASES[2], model(), SETTINGS[setting]
    plain = say(m, Raw(), s, Odd(m.ids), case.prompt)
    assert plain.redrawn and plain.stop == "length"
    for name in ("dflash2", "mtp") if setting == "cut" else ("dflash2",):
        rule = Odd(m.ids)
        got = say(m, draft(name, case), s, rule, case.prompt)
        assert got.tokens == plain.tokens == rule.taken
        assert got.steps < plain.steps


def test_a_token_is_what_its_logits_and_noise_give_among_the_allowed_ones():
    """Without cuts a token that is drawn again, and any other one, is the masked draw itself."""
    case, m, heat = CASES[0], model(), 0.9
    s, ids = sampling(heat, seed=6), torch.arange(model().ids)
    stream, rule, counts = open_stream(m, Raw(), case.prompt, s, CAPACITY), Odd(m.ids), Counts()
    for (token,) in speak(stream, counts, 16, rule=rule):
        before = Odd(m.ids)
        before.taken = rule.taken[:-1]
        at = torch.tensor(len(case.prompt) + len(before.taken))
        scores = stream.row_logits(0)[0, : m.ids].float() / heat + gumbel(s.seed, at, ids)
        scores[[i for i in range(m.ids) if not before._allowed(i)]] = -torch.inf
        assert token == int(scores.argmax())
    assert counts.redrawn


def test_a_rule_ends_the_text_and_the_next_one_goes_on_exactly():
    case, m = CASES[0], model()
    d, s, prompt = draft("dflash2", case), SETTINGS["cut"], list(case.prompt)
    held = Sessions(m, d, CAPACITY, 1 << 28)
    for last in (1, 9):
        held.forget()
        turn, counts = held.open(prompt, s), Counts()
        made = [t for ts in turn.answer(counts, 99, rule=Odd(m.ids, last)) for t in ts]
        assert counts.stop == "rule" and len(made) == last
        whole = [t for ts in turn.more(Counts(), 12) for t in ts]
        plain = Sessions(m, Raw(), CAPACITY, 1 << 28).open(prompt, s)
        assert [t for ts in plain.answer(Counts(), 99, rule=Odd(m.ids, last)) for t in ts] == made
        assert [t for ts in plain.more(Counts(), 12) for t in ts] == whole


class NoEnd(Odd):
    """Refuses end tokens alone."""

    def _allowed(self, token: int) -> bool:
        return token != END


def test_a_refused_end_token_does_not_end_the_text():
    """Also where the device ended it: the row behind an end token is not kept."""
    case, m = CASES[0], model()
    s = sampling(0.7, seed=2, logit_bias={END: 9.0})
    plain = say(m, Raw(), s, NoEnd(m.ids), case.prompt, 20, (END,))
    assert plain.redrawn and END not in plain.tokens and len(plain.tokens) == 20
    got = say(m, draft("dflash2", case), s, NoEnd(m.ids), case.prompt, 20, (END,))
    assert got.tokens == plain.tokens


def test_a_mask_holds_bits_and_leaves_nothing_else():
    ids = 77
    allowed = [0, 31, 32, 63, 76]
    mask = mask_of(allowed, ids)
    assert len(mask) == -(-ids // BITS) and mask.dtype == torch.int32
    logits = torch.randn(2, ids, generator=torch.Generator().manual_seed(0))
    got = masked(logits, mask)
    others = [i for i in range(ids) if i not in allowed]
    assert torch.equal(got[:, allowed], logits[:, allowed])
    assert (got[:, others] < -1e29).all()
    assert torch.equal(mask_without(mask, [31, 5]), mask_of([0, 32, 63, 76], ids))


@pytest.mark.parametrize("rule", [False, True])
def test_logarithms_do_not_depend_on_the_step(rule):
    """Nor on when the host reads it."""
    case, m = CASES[2], model()
    s, found = SETTINGS["cut"], []
    block = draft("dflash2", case)
    for d, late in ((Raw(), False), (block, False), (block, True)):
        stream, counts = open_stream(m, d, case.prompt, s, CAPACITY), Counts()
        stream.top, stream.late = 5, late
        for _ in speak(stream, counts, 12, rule=Odd(m.ids) if rule else None):
            pass
        found.append((counts.tokens, counts.logprobs))
    assert found[0] == found[1] == found[2] and len(found[0][1]) == 12
    for token, told in zip(*found[0], strict=True):
        best = dict(told.top)
        assert len(best) == 5 and list(best.values()) == sorted(best.values(), reverse=True)
        assert best.get(token, told.logprob) == told.logprob <= max(best.values()) <= 0


def test_a_prompt_is_told_once_and_alike_in_any_chunks():
    case, m = CASES[0], model()
    ids = torch.tensor(case.prompt)
    with torch.inference_mode():
        hidden, _, _ = text.sequence(m.params, text.init_past(m.params, 1), ids[None])
        logits = m.params.head.sequence(hidden[0], m.ops)[:, : m.ids].float().log_softmax(1)
    for chunk in (64, 512):
        found: list[Logprob] = []
        held = Sessions(dataclasses.replace(m, chunk=chunk), Raw(), CAPACITY, 1 << 28)
        for _ in range(2):  # the second time it is known, and read anew
            found.clear()
            hear = prompt_logprobs(m, ids, 3, found)
            turn = held.open(case.prompt, SETTINGS["greedy"], hear=hear)
        assert turn.reused == 0 and len(found) == len(ids) - 1
        for i, one in enumerate(found):
            assert one.logprob == pytest.approx(float(logits[i, ids[i + 1]]), abs=0.05)
            assert one.top[0][1] == pytest.approx(float(logits[i].max()), abs=0.05)


@pytest.mark.parametrize("name, strict", [("raw", False), ("dflash2", False), ("mtp", True)])
def test_a_prompt_that_was_given_up_goes_on_from_its_last_chunk(name, strict):
    case = CASES[3]
    m, s = dataclasses.replace(model(), chunk=64), SETTINGS["cut"]
    d, prompt = draft(name, case), list(case.prompt * 3)[:300]
    held, whole = (Sessions(m, d, CAPACITY, 1 << 28, strict=strict) for _ in range(2))
    other = held.open(prompt[5:80], s)
    list(other.answer(Counts(), 3))
    told = []

    def goes_on(read: int) -> bool:
        told.append(read)
        return len(told) < 4

    with pytest.raises(Cancelled):
        held.open(prompt, s, goes_on=goes_on)
    assert told == [0, 64, 128, 192]
    turn, cold = held.open(prompt, s), whole.open(prompt, s)
    assert turn.reused == 192 and turn.computed == len(prompt) - 192
    assert list(turn.answer(Counts(), 6)) == list(cold.answer(Counts(), 6))
    assert held.open(prompt[5:80], s).reused == (64 if strict else 75)


def test_a_prompt_given_up_where_the_draft_saw_too_little_goes_on_before_that():
    case = CASES[3]
    m, s = dataclasses.replace(model(), chunk=64), SETTINGS["cut"]
    d = dataclasses.replace(draft("dflash2", case), window=32)
    prompt = list(case.prompt * 3)[:300]
    held = Sessions(m, d, CAPACITY, 1 << 28)
    with pytest.raises(Cancelled):
        held.open(prompt, s, marks=(100,), goes_on=lambda read: read < 192)
    assert held.open(prompt, s).reused == 100
