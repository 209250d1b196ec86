"""A layer whose inputs hang together, as those of real ones do."""

import pytest
import torch

from tests.quant.layers import TOKENS, K, N


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    """Correlated, of uneven power: [tokens, k]."""
    g = torch.Generator().manual_seed(0)
    mix = torch.randn(K, K, generator=g) * torch.arange(1, K + 1) ** -0.7
    power = (0.6 * torch.randn(K, generator=g)).exp()
    return torch.randn(2 * TOKENS, K, generator=g) @ mix.t() * power


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(1)) * K**-0.5
