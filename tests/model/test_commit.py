"""After any accepted counts the state is that of a run over the same tokens, one by one."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.registry import select
from tests.model.small import CONFIG, copy, meaning, prefilled, random_params, random_tokens
from tr.model import text
from tr.tree import tensors

PROMPT, DRAFTS = 40, 7


@functools.cache
def model() -> text.Params:
    return random_params(torch.bfloat16)


def block(state: text.State, tokens: torch.Tensor, keep: int, variant: str) -> text.State:
    """A step over `tokens` of which the first `keep` are accepted."""
    _, state = text.step(model(), state, tokens, select(variant))
    return text.commit(state, torch.tensor(keep))


def assert_same(a: text.State, b: text.State, note: object = None) -> None:
    x, y = meaning(a), meaning(b)
    assert x.keys() == y.keys()
    for name in x:
        assert torch.equal(x[name], y[name]), (note, name)


@pytest.mark.parametrize("variant", ["reference", "tile"])
@torch.inference_mode()
def test_all_pairs_of_accepted_counts(variant):
    """Two verify steps of an anchor and 7 drafts; 0..7 drafts accepted in each."""
    first, second = random_tokens(DRAFTS + 1, seed=1), random_tokens(DRAFTS + 1, seed=2)
    start = prefilled(model(), random_tokens(PROMPT))
    alone = start
    for a in range(1, DRAFTS + 2):
        alone = block(copy(alone), first[a - 1 : a], 1, variant)
        after = block(copy(start), first, a, variant)
        assert_same(after, alone, a)
        longer = alone
        for b in range(1, DRAFTS + 2):
            longer = block(copy(longer), second[b - 1 : b], 1, variant)
            assert_same(block(copy(after), second, b, variant), longer, (a, b))


counts = st.integers(1, 16).flatmap(lambda rows: st.tuples(st.just(rows), st.integers(0, rows)))


@settings(max_examples=25)
@given(
    prompt=st.integers(0, 70),
    steps=st.lists(counts, min_size=1, max_size=5),
    variant=st.sampled_from(["reference", "tile"]),
    seed=st.integers(0, 2**20),
)
@torch.inference_mode()
def test_random_drafts_and_accepted_counts(prompt, steps, variant, seed):
    """Blocks of any size, any part of them kept (none at all included), then the next logits."""
    tokens = random_tokens(16 * len(steps) + 1, seed)
    spec = prefilled(model(), random_tokens(prompt))
    alone = copy(spec)
    at = 0
    for rows, keep in steps:
        spec = block(spec, tokens[at : at + rows], keep, variant)
        for i in range(at, at + keep):
            alone = block(alone, tokens[i : i + 1], 1, variant)
        at += rows
    assert_same(spec, alone)
    a, _ = text.step(model(), spec, tokens[-1:], select(variant))
    b, _ = text.step(model(), alone, tokens[-1:], select(variant))
    assert torch.equal(a.logits, b.logits) and a.logits.shape == (1, CONFIG.vocab)


@torch.inference_mode()
def test_a_step_writes_nothing_that_counts():
    """Until `commit`, a state means what it meant before the step; committing none keeps it so."""
    start = prefilled(model(), random_tokens(PROMPT))
    start = block(start, random_tokens(5, seed=3), 4, "reference")
    kept = copy(start)
    after = block(start, random_tokens(8, seed=4), 0, "reference")
    assert_same(after, kept)


@torch.inference_mode()
def test_state_is_donated_not_copied():
    start = prefilled(model(), random_tokens(PROMPT))
    _, after = text.step(model(), start, random_tokens(3), select("tile"))
    after = text.commit(after, torch.tensor(2))
    for name, t in tensors(start).items():
        assert t.data_ptr() == tensors(after)[name].data_ptr(), name
