"""Closeness judged by data: the reference's own distance from float64 decides what is allowed."""

import torch
from torch import Tensor


def assert_as_close(actual: Tensor, reference: Tensor, exact: Tensor) -> None:
    """Assert that `actual` is as close to `exact` (float64) as `reference` is.

    The budget is twice the reference's own largest distance plus one ulp of the result's dtype at
    the largest magnitude; `actual` must have the reference's shape and dtype and be finite.
    """
    assert actual.shape == reference.shape, (actual.shape, reference.shape)
    assert actual.dtype == reference.dtype, (actual.dtype, reference.dtype)
    assert exact.dtype == torch.float64, exact.dtype
    assert torch.isfinite(actual).all(), "not finite"
    if actual.numel() == 0:
        return
    ulp = torch.finfo(actual.dtype).eps * exact.abs().max().item()
    budget = 2 * (reference.double() - exact).abs().max().item() + ulp
    error = (actual.double() - exact).abs().max().item()
    assert error <= budget, f"error {error:.3e} exceeds the budget {budget:.3e}"
