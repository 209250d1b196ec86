"""The chained head against a plain statement over the whole text, and its cache between steps."""

import dataclasses

import pytest
import torch

from kernels.sample import gumbel
from tests.decode.scripted import Scripted
from tests.decode.small import IDS, model, mtp_draft
from tests.model.small import copy, random_tokens
from tr.decode.generate import generate
from tr.decode.step import init_state, keep, prefill, step
from tr.drafts.base import Seen
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model import mtp, text
from tr.model.sampling import Sampling, sampling
from tr.nn import attention
from tr.tree import replace_tensors, tensors

TOKENS = 5
PROMPT = random_tokens(30, seed=9).clamp(max=IDS - 1)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def float_model():
    """In float32, so that roundings decide nothing."""
    return model(dtype=torch.float32)


def chained(draft: Mtp, tokens: torch.Tensor, s: Sampling) -> tuple[list[int], attention.Past]:
    """Drafts after tokens [n], and the head's keys and values of the pairs of positions 1 .. n - 1.

    Pair p is (token p, hidden p - 1); the hidden is the target's up to the anchor, then the head's.
    """
    params, target = draft.params, draft.target
    hidden, _, _ = text.sequence(target, text.init_past(target, 1), tokens[None, :-1])
    first, drafts = 1, []
    words = tokens[None]
    kept = None
    for i in range(draft.tokens):
        past = mtp.layer.init_past(params.layer, 1)
        # rows count from 0 here, and pair p is row p - 1: relative positions are the same
        out, past = mtp.sequence(params, past, target.embed, words[:, first:], hidden, target.rope)
        kept = past if kept is None else kept
        logits = target.head.sequence(out[0, -1])[:IDS].double()
        if float(s.temperature):
            at = torch.tensor(len(tokens) + i)
            logits = logits / float(s.temperature) + gumbel(s.seed, at, torch.arange(IDS))
        drafts.append(int(logits.argmax()))
        words = torch.cat([words, torch.tensor([[drafts[-1]]])], 1)
        hidden = torch.cat([hidden, out[:, -1:]], 1)
    assert isinstance(kept, attention.Past)
    return drafts, kept


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.3, "seed": 5}], ids=str)
def test_the_chain_by_its_statement(settings):
    """After a prompt, and after steps that kept 1 .. 6 rows of a block."""
    m, s = float_model(), sampling(**settings)
    made = generate(m, Raw(), PROMPT.tolist(), s, 60, (), 128).tokens
    truth = torch.cat([PROMPT, torch.tensor(made)])
    real = mtp_draft(m, TOKENS)
    state = None
    for right in (None, 0, 1, 2, 3, 4, 5):
        draft = Scripted(truth, lambda pos, n=right: (TOKENS, n or 0), real, rows=TOKENS + 1)
        if state is None:
            state = prefill(m, draft, init_state(m, draft, 128), PROMPT, s)
        else:
            result, _, state = step(m, draft, state, s, TOKENS + 1)
            assert right is not None and int(result[0]) == right + 1
        feed = state.feed
        drafts, after = real.propose(state.draft, feed, s)
        state = dataclasses.replace(state, draft=after)
        want, _ = chained(real, truth[: int(feed.pos) + 1], s)
        assert drafts.tolist() == want, right


def test_the_cache_holds_the_true_hiddens_pairs():
    """However steps were kept and cut, rows 1 .. pos are those of one pass over the text.

    Keys are compared through a table that turns nothing: positions differ by the unused row 0.
    """
    m = float_model()
    flat = {
        "rope.cos": torch.ones_like(m.params.rope.cos),
        "rope.sin": torch.zeros_like(m.params.rope.sin),
    }
    m = dataclasses.replace(m, params=replace_tensors(m.params, flat))
    s = sampling()
    made = generate(m, Raw(), PROMPT.tolist(), s, 60, (), 128).tokens
    truth = torch.cat([PROMPT, torch.tensor(made)])
    real = mtp_draft(m, TOKENS)
    plan = {}
    draft = Scripted(truth, lambda pos: plan["next"], real, rows=TOKENS + 1)
    state = prefill(m, draft, init_state(m, draft, 128), PROMPT, s)
    for proposed, right, cut in ((5, 5, 6), (5, 2, 3), (5, 5, 2), (3, 0, 1), (5, 4, 4), (0, 0, 1)):
        plan["next"] = proposed, right
        _, _, state = step(m, draft, state, s, max(2, proposed + 1))
        state = keep(state, torch.tensor(cut))
    pos = int(state.feed.pos)
    assert pos == len(PROMPT) + 17
    _, after = real.propose(state.draft, state.feed, s)
    _, exact = chained(real, truth[: pos + 1], s)
    for got, want in ((after.cache.k, exact.k), (after.cache.v, exact.v)):
        torch.testing.assert_close(got[:, 1 : pos + 1], want[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("cuts", [[1], [10], [10, 11, 20]], ids=str)
def test_priming_in_chunks_equals_priming_at_once(cuts):
    """A chunk's first pair takes the hidden of the chunk before."""
    m = float_model()
    draft = mtp_draft(m, TOKENS)
    hidden, _, _ = text.sequence(m.params, text.init_past(m.params, 1), PROMPT[None])

    def prime(cuts: list[int]):
        state, pos = draft.init_state(128), 0
        for tokens, rows in zip(
            PROMPT.tensor_split(cuts), hidden[0].tensor_split(cuts), strict=True
        ):
            state = draft.prime(state, tokens, rows, rows[:, :0], pos)
            pos += len(tokens)
        return state

    whole, parts = prime([]), prime(cuts)
    assert torch.equal(whole.last, hidden[0, -1]) and torch.equal(parts.last, whole.last)
    for name in ("k", "v"):
        a, b = (getattr(x.cache, name)[:, 1 : len(PROMPT)] for x in (parts, whole))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_padding_rows_are_never_drafted(heat):
    m = float_model()
    weight = tensors(m.params)["lm_head.weight"].clone()
    weight[IDS:] = 100 * torch.randn(6, weight.shape[1])  # would win almost always
    m = dataclasses.replace(m, params=replace_tensors(m.params, {"lm_head.weight": weight}))
    draft = mtp_draft(m, TOKENS)
    for seed in range(10):
        s = sampling(heat, seed=seed)
        prompt = random_tokens(12, seed=seed).clamp(max=IDS - 1)
        state = prefill(m, draft, init_state(m, draft, 64), prompt, s)
        drafts, _ = draft.propose(state.draft, state.feed, s)
        assert len(drafts) == TOKENS and int(drafts.max()) < IDS


def test_the_depth_follows_what_was_accepted():
    """clamp(accepted + 2, 3, 4), one program a depth; a fixed depth without `least`."""
    fixed = mtp_draft(float_model(), 4)
    assert isinstance(fixed, Mtp)
    draft = dataclasses.replace(fixed, least=3)
    picked = [draft.pick([Seen(5, kept)] if kept else []) for kept in range(6)]
    assert [rows for _, rows in picked] == [4, 4, 4, 5, 5, 5]
    assert [program.calls for program, _ in picked] == [3, 3, 3, 4, 4, 4]
    assert draft.pick([Seen(5, 5), Seen(4, 1)]) == picked[0]
    assert len({id(program) for program, _ in picked}) == 2
    assert fixed.pick([Seen(5, 1)]) == (fixed, 5)


class InTurn(Mtp):
    """Every depth in turn, whatever was accepted."""

    def pick(self, seen):
        program = self.chains[(len(seen) - 1) % len(self.chains)]
        return program, program.calls + 1


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 5}], ids=str)
@pytest.mark.parametrize("length", [1, 30, 64])
def test_every_depth_in_turn_is_exact(length, settings):
    """And a shorter chain gives the first drafts of a longer one, over the same state."""
    m, s = float_model(), sampling(**settings)
    fixed = mtp_draft(m, 6)
    assert isinstance(fixed, Mtp)
    draft = InTurn(fixed.params, fixed.target, fixed.ops, 6, fixed.head, least=1)
    prompt = random_tokens(length, seed=length).clamp(max=IDS - 1).tolist()
    made = generate(m, draft, prompt, s, 24, (), 128)
    assert made.tokens == generate(m, Raw(), prompt, s, 24, (), 128).tokens
    assert made.proposed[:8] == [1, 2, 3, 4, 5, 6, 1, 2]
    state = prefill(m, draft, init_state(m, draft, 128), torch.tensor(prompt), s)
    whole, _ = fixed.propose(copy(state.draft), state.feed, s)
    for n, program in enumerate(draft.chains, 1):
        drafts, _ = program.propose(copy(state.draft), state.feed, s)
        assert drafts.tolist() == whole[:n].tolist()
