"""A prompt onto a decoding state: whatever operator runs it, as the pure form has it."""

import pytest
import torch

from kernels.gated_delta_step.reference import absorb
from kernels.registry import select
from tr.nn import gated_delta_net
from tr.tree import map_tensors

pytest.importorskip("triton")
SPEC = gated_delta_net.Spec(k_heads=2, v_heads=4, d_k=16, d_v=32, conv_width=4, eps=1e-6)
D_MODEL = 48


def layer(dtype):
    """Parameters, and a state with records that all mean something."""
    g = torch.Generator().manual_seed(0)
    params = gated_delta_net.init(SPEC, D_MODEL, g, dtype)
    state = map_tensors(
        lambda t: torch.randn(t.shape, generator=g).to(t.dtype),
        gated_delta_net.init_state(params, 8),
    )
    state.past_decay.sigmoid_()
    return params, state


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", ["reference", "triton"])
@pytest.mark.parametrize("tokens, pending", [(70, 3), (2, 0)])
def test_prefill_is_the_pure_form_on_a_state(variant, dtype, tokens, pending):
    params, state = layer(dtype)
    ops = select("reference", {"gated_delta_chunk": variant})
    x = torch.randn(tokens, D_MODEL).to(dtype)
    with torch.inference_mode():
        old = map_tensors(torch.clone, state)
        absorb(old.h, old.tail, old.past_x, old.past_k, old.past_u, old.past_decay, pending)
        past = gated_delta_net.Past(h=old.h[None], tail=old.tail[None])
        want, end = gated_delta_net.sequence(params, past, x[None])
        got, after = gated_delta_net.prefill(params, state, x, pending, ops)
    assert after.h.data_ptr() == state.h.data_ptr() and torch.equal(after.tail, end.tail[0])
    bound = 0.0 if variant == "reference" else 1e-5 if dtype == torch.float32 else 2e-2
    assert (got - want[0]).abs().max() <= bound * want.abs().max()
    assert (after.h - end.h[0]).abs().max() <= bound * end.h.abs().max()
