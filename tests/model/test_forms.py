"""One model, several ways to run it: whole sequences, prefill in chunks, batches, single rows."""

import pytest
import torch

from kernels.registry import select
from tests.model.small import (
    CAPACITY,
    CONFIG,
    ROWS,
    copy,
    prefilled,
    random_mtp,
    random_params,
    random_tokens,
)
from tr.model import layer, mtp, text
from tr.tree import replace_tensors, tensors

BUDGET = 1e-4  # float32, of logits about 3 wide


def by_prefill(params, tokens, cuts):
    state = text.init_state(params, CAPACITY, ROWS)
    parts = []
    for part in tokens.tensor_split(cuts):
        hidden, taps, state = text.prefill(params, state, part, select("reference"), (0, 2))
        parts.append((hidden, taps))
    hidden, taps = (torch.cat(x) for x in zip(*parts, strict=True))
    return hidden, taps, state


@pytest.mark.parametrize("count", [129, 150, 200])
@pytest.mark.parametrize("cuts", [[64], [128], [64, 128]], ids=str)
def test_prefill_split_at_multiples_of_64_changes_no_bit(count, cuts):
    params, tokens = random_params(torch.bfloat16), random_tokens(count)
    with torch.inference_mode():
        hidden, taps, state = by_prefill(params, tokens, [])
        hidden2, taps2, state2 = by_prefill(params, tokens, cuts)
    assert torch.equal(hidden, hidden2) and torch.equal(taps, taps2)
    for name, t in tensors(state).items():
        assert torch.equal(t, tensors(state2)[name]), name


def by_sequence(params, tokens, form):
    hidden, _, _ = text.sequence(params, text.init_past(params, 1), tokens[None], form=form)
    return hidden[0]


def by_step(params, tokens, rows, variant):
    ops, state = select(variant), text.init_state(params, CAPACITY, ROWS)
    out = []
    for part in tokens.split(rows):
        result, state = text.step(params, state, part, ops)
        state = text.commit(state, torch.tensor(len(part)))
        out.append(result.hidden.x)
    return torch.cat(out)


def test_every_form_agrees_in_float32():
    params, tokens = random_params(torch.float32), random_tokens(130)
    with torch.inference_mode():
        want = params.head.sequence(by_sequence(params, tokens, "recurrent"))
        others = {form: by_sequence(params, tokens, form) for form in ("chunk", "train")}
        others["prefill"] = by_prefill(params, tokens, [10, 47])[0]
        for variant in ("reference", "tile"):
            others[f"step {variant}"] = by_step(params, tokens, 7, variant)
        assert want.std() > 0.5
        for name, hidden in others.items():
            assert (params.head.sequence(hidden) - want).abs().max() < BUDGET, name


def test_a_batch_is_its_sequences_side_by_side():
    params = random_params(torch.float32)
    tokens = torch.stack([random_tokens(70, seed) for seed in range(3)])
    with torch.inference_mode():
        together, _, _ = text.sequence(params, text.init_past(params, 3), tokens)
        for row, hidden in zip(tokens, together, strict=True):
            assert (by_sequence(params, row, "chunk") - hidden).abs().max() < BUDGET


def test_a_sequence_continues_from_its_past():
    params, tokens = random_params(torch.float32), random_tokens(100)[None]
    with torch.inference_mode():
        whole, _, end = text.sequence(params, text.init_past(params, 1), tokens)
        first, _, past = text.sequence(params, text.init_past(params, 1), tokens[:, :33])
        before = copy(past)
        second, _, last = text.sequence(params, past, tokens[:, 33:])
    assert (torch.cat([first, second], 1) - whole).abs().max() < BUDGET
    for name, t in tensors(end).items():
        assert (t - tensors(last)[name]).abs().max() < BUDGET, name
    for name, t in tensors(before).items():  # pure
        assert torch.equal(t, tensors(past)[name]), name


def test_prefill_after_steps_absorbs_the_accepted_rows():
    params, tokens = random_params(torch.float32), random_tokens(60)
    with torch.inference_mode():
        state = prefilled(params, tokens[:20])
        drafts = torch.cat([tokens[20:23], random_tokens(5, seed=9)])  # 3 of 8 are right
        _, state = text.step(params, state, drafts, select("reference"))
        state = text.commit(state, torch.tensor(3))
        hidden, _, state = text.prefill(params, state, tokens[23:], select("reference"))
        want = by_sequence(params, tokens, "recurrent")
    assert int(state.pos) == 60 and int(state.pending) == 0
    assert (hidden - want[23:]).abs().max() < BUDGET


def test_training_gradients_equal_the_recurrence_gradients():
    params, tokens = random_params(torch.float32), random_tokens(70)
    grads = []
    for form in ("recurrent", "train", "chunk"):
        key = "layers[0].mixer.in_qkvz.weight"
        leaf = tensors(params)[key].detach().requires_grad_()
        hidden = by_sequence(replace_tensors(params, {key: leaf}), tokens, form)
        grads.append(torch.autograd.grad(hidden.square().sum(), leaf)[0])
    for grad in grads[1:]:
        assert (grad - grads[0]).abs().max() < 1e-4 * grads[0].abs().max()


def test_the_recurrent_state_is_float32_and_stays_finite():
    params, tokens = random_params(torch.bfloat16), random_tokens(48)
    with torch.inference_mode():
        state = prefilled(params, random_tokens(100))
        for part in tokens.split(16):
            _, state = text.step(params, state, part, select("tile"))
            state = text.commit(state, torch.tensor(16))
    for p, s in zip(params.layers, state.layers, strict=True):
        assert all(t.isfinite().all() for t in tensors(s).values())
        if isinstance(s, layer.gated_delta_net.State):
            assert s.h.dtype == s.past_u.dtype == s.past_decay.dtype == torch.float32
            assert s.tail.dtype == p.input_norm.dtype == torch.bfloat16


def test_mtp_forms_agree():
    params, head = random_params(torch.float32), random_mtp(torch.float32)
    tokens, hidden = random_tokens(40), torch.randn(40, CONFIG.d_model)
    shared = (params.embed, params.rope)
    with torch.inference_mode():
        past = layer.init_past(head.layer, 1)
        want, _ = mtp.sequence(head, past, shared[0], tokens[None], hidden[None], shared[1])
        state = layer.init_state(head.layer, CAPACITY, ROWS)
        pairs = tokens[:30], hidden[:30]
        own = select("reference")
        first, state = mtp.prefill(head, state, shared[0], *pairs, 0, shared[1], own)
        for variant in ("reference", "tile"):
            rows = [first]
            now = copy(state)
            for i in range(30, 40, 5):
                pair = tokens[i : i + 5], hidden[i : i + 5]
                pos = torch.tensor(i)
                out, now = mtp.step(head, now, shared[0], *pair, pos, shared[1], select(variant))
                rows.append(out)
            assert (torch.cat(rows) - want[0]).abs().max() < BUDGET


def test_states_and_prompts_past_the_models_positions_are_refused():
    params = random_params(torch.float32)
    with pytest.raises(ValueError, match=r"capacity of 1 \.\. 1024 tokens .*got 2048"):
        text.init_state(params, 2048, ROWS)
    with pytest.raises(ValueError, match="got 0"):
        text.init_state(params, 0, ROWS)
