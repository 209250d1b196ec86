"""Closeness judged by data: the reference's own distance from float64 decides what is allowed."""

import torch
from torch import Tensor


def closeness(actual: Tensor, reference: Tensor, exact: Tensor) -> tuple[float, float]:
    """How far `actual` is from `exact` (float64), and how far it may be.

    The budget is twice the reference's own largest distance plus one ulp of the result's dtype at
    the largest magnitude. A distance that is not finite is infinite.
    """
    if actual.numel() == 0:
        return 0.0, 0.0
    ulp = torch.finfo(actual.dtype).eps * exact.abs().max().item()
    budget = 2 * (reference.double() - exact).abs().max().item() + ulp
    distance = (actual.double() - exact).abs().max()
    return (distance.item() if distance.isfinite() else torch.inf), budget


def assert_as_close(actual: Tensor, reference: Tensor, exact: Tensor) -> None:
    """Assert that `actual` is as close to `exact` (float64) as `reference` is.

    `actual` must have the reference's shape and dtype and be finite; the budget is `closeness`'s.
    Integers must be the reference's.
    """
    assert actual.shape == reference.shape, (actual.shape, reference.shape)
    assert actual.dtype == reference.dtype, (actual.dtype, reference.dtype)
    if not actual.is_floating_point():
        assert torch.equal(actual, reference)
        return
    assert exact.dtype == torch.float64, exact.dtype
    error, budget = closeness(actual, reference, exact)
    assert error < torch.inf, "not finite"
    assert error <= budget, f"error {error:.3e} exceeds the budget {budget:.3e}"
