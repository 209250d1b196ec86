"""A row's logits, hidden and taps have the same bits in a block of any size and at any place."""

import pytest
import torch

from kernels.registry import select
from tests.model.small import copy, prefilled, random_params, random_tokens
from tr.model import text
from tr.tree import replace_tensors, tensors

TAPS = (0, 2, 3)


def resident(params):
    """Weight matrices in float32, as the tile variant takes them beside bfloat16 rows."""
    wide = {k: t.float() for k, t in tensors(params).items() if k.endswith(".weight")}
    return replace_tensors(params, wide)


@pytest.fixture(params=["reference", "tile", "tile, resident", "float32"])
def model(request):
    """(params for prefill, params for steps, operators)."""
    params = random_params(torch.float32 if request.param == "float32" else torch.bfloat16)
    stepping = resident(params) if request.param == "tile, resident" else params
    return params, stepping, select("reference" if request.param == "reference" else "tile")


@pytest.mark.parametrize("prompt", [0, 70, 505])  # 505: the block crosses a block of keys
def test_rows_do_not_notice_each_other(model, prompt):
    prefilling, params, ops = model
    tokens = random_tokens(16, seed=5)
    with torch.inference_mode():
        start = prefilled(prefilling, random_tokens(prompt), capacity=1024)
        whole, _ = text.step(params, copy(start), tokens, ops, TAPS)
        assert whole.logits.isfinite().all()
        for rows in (1, 2, 4, 8):
            part, _ = text.step(params, copy(start), tokens[:rows], ops, TAPS)
            for name, t in tensors(part).items():
                assert torch.equal(t, tensors(whole)[name][:rows]), (rows, name)
        for rows in (1, 5):  # the same tokens, in several steps
            state, at = copy(start), 0
            for block in tokens.split(rows):
                part, state = text.step(params, state, block, ops, TAPS)
                state = text.commit(state, torch.tensor(len(block)))
                for name, t in tensors(part).items():
                    assert torch.equal(t, tensors(whole)[name][at : at + len(block)]), (at, name)
                at += len(block)


def test_garbage_behind_the_position_is_never_read(model):
    prefilling, params, ops = model
    tokens = random_tokens(4, seed=6)
    with torch.inference_mode():
        clean = prefilled(prefilling, random_tokens(30))
        dirty = copy(clean)
        for name, t in tensors(dirty).items():
            if name.endswith((".k", ".v")):
                t[:, 30:] = 1e4  # finite, as caches are
            elif ".past_" in name:
                t.fill_(1e4)
        a, _ = text.step(params, clean, tokens, ops)
        b, _ = text.step(params, dirty, tokens, ops)
    assert torch.equal(a.logits, b.logits)
