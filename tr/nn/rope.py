"""Rotary embedding tables: angles in fp32, cosines and sines rounded to the model's dtype."""

import torch
from jaxtyping import Float
from torch import Tensor

from tr.tree import tree


@tree
class Rope:
    cos: Float[Tensor, "positions half"]
    sin: Float[Tensor, "positions half"]


def rope(positions: int, rotary_dim: int, theta: float, dtype: torch.dtype, device: str) -> Rope:
    """cos and sin of pos * theta^(-2 i / rotary_dim), i < rotary_dim / 2; text needs no M-RoPE."""
    index = torch.arange(0, rotary_dim, 2, dtype=torch.int64, device=device).float()
    frequency = 1.0 / theta ** (index / rotary_dim)
    angle = torch.arange(positions, device=device).float()[:, None] * frequency
    return Rope(cos=angle.cos().to(dtype), sin=angle.sin().to(dtype))
