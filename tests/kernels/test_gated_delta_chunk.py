import functools

import pytest
import torch

from kernels.gated_delta_chunk import chunked, recurrent, unit, unit_lower_inverse


def inputs(tokens, heads=2, d_k=8, d_v=6, dtype=torch.float64, batch=2):
    def draw(*shape):
        return torch.randn(batch, heads, *shape, dtype=dtype)

    q, k, v = unit(draw(tokens, d_k)), unit(draw(tokens, d_k)), draw(tokens, d_v)
    return q, k, v, -draw(tokens).exp(), draw(tokens).sigmoid(), draw(d_k, d_v)


def distance(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("n", [1, 2, 4, 16, 64])
def test_unit_lower_inverse(n):
    a = torch.randn(3, n, n, dtype=torch.float64) * n**-0.5
    exact = torch.linalg.inv(torch.eye(n, dtype=a.dtype) + a.tril(-1))
    assert (unit_lower_inverse(a) - exact).abs().max() < 1e-10
    assert (unit_lower_inverse(a.requires_grad_()) - exact).abs().max() < 1e-10


def test_unit_lower_inverse_stays_finite_where_keys_repeat():
    """With all keys equal and beta 1 the inverse is bidiagonal, its powers are binomials."""
    ones = torch.ones(64, 64)
    exact = torch.eye(64) - torch.diag(torch.ones(63), -1)
    assert torch.equal(unit_lower_inverse(ones), exact)
    near = ones + 1e-3 * torch.randn(64, 64)
    solved = torch.linalg.inv(torch.eye(64).double() + near.double().tril(-1))
    assert (unit_lower_inverse(near) - solved).abs().max() < 1e-4


def test_unit_lower_inverse_gradient():
    a = torch.randn(2, 8, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit_lower_inverse, a)


def test_the_training_form_has_the_right_gradient():
    leaves = [t.requires_grad_() for t in inputs(tokens=6, heads=1, d_k=3, d_v=2, batch=1)]
    assert torch.autograd.gradcheck(lambda *x: chunked(*x, chunk=4, train=True), leaves)


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 64, 100])
@pytest.mark.parametrize("train", [False, True], ids=["solve", "train"])
@pytest.mark.parametrize("chunk", [8, 64])
def test_chunked_equals_recurrent(tokens, train, chunk):
    x = inputs(tokens)
    assert distance(chunked(*x, chunk=chunk, train=train), recurrent(*x)) < 1e-11
    x = [t.float() for t in x]
    assert distance(chunked(*x, chunk=chunk, train=train), recurrent(*x)) < 1e-4


def test_gradients_of_both_forms_agree():
    x = inputs(tokens=70)
    target = torch.randn(2, 2, 70, 6, dtype=torch.float64)
    grads = []
    for form in (recurrent, functools.partial(chunked, train=True), chunked):
        leaves = [t.detach().clone().requires_grad_() for t in x]
        o, h = form(*leaves)
        grads.append(torch.autograd.grad((o * target).sum() + h.sum(), leaves))
    assert distance(grads[1], grads[0]) < 1e-10 and distance(grads[2], grads[0]) < 1e-10


@pytest.mark.parametrize("split", [64, 128])
def test_a_split_at_whole_chunks_changes_no_bit(split):
    q, k, v, g, beta, h = inputs(150, dtype=torch.float32)
    whole, end = chunked(q, k, v, g, beta, h)
    halves = [(t[:, :, :split], t[:, :, split:]) for t in (q, k, v, g, beta)]
    (q, q2), (k, k2), (v, v2), (g, g2), (beta, beta2) = halves
    first, middle = chunked(q, k, v, g, beta, h)
    second, last = chunked(q2, k2, v2, g2, beta2, middle)
    assert torch.equal(torch.cat([first, second], 2), whole) and torch.equal(last, end)


def test_strong_decay_neither_overflows_nor_spoils_gradients():
    q, k, v, g, beta, h = inputs(64, dtype=torch.float32)
    leaves = [t.requires_grad_() for t in (q, k, v, 100 * g, beta, h)]
    for train in (False, True):
        o, end = chunked(*leaves, train=train)
        assert o.isfinite().all() and end.isfinite().all()
        for grad in torch.autograd.grad(o.sum() + end.sum(), leaves):
            assert grad.isfinite().all()


def test_inputs_are_left_alone():
    x = inputs(20)
    before = [t.clone() for t in x]
    chunked(*x)
    recurrent(*x)
    assert all(torch.equal(a, b) for a, b in zip(x, before, strict=True))
