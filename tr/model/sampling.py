"""How tokens are drawn, as tensors on the device, so that a captured step needs no host."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tr.tree import static, tree


@tree
class Sampling:
    """temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 leave the distribution whole.

    Never written in place: other settings are another object.
    """

    temperature: Float[Tensor, ""]
    top_k: Int64[Tensor, ""]
    top_p: Float[Tensor, ""]
    min_p: Float[Tensor, ""]
    seed: Int64[Tensor, "2"]  # two 32-bit halves
    greedy: bool = static()  # temperature 0, for who must know it without reading the device


def sampling(
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Sampling:
    """Checked settings; raises ValueError naming the field and its range."""
    for name, value, low, high in (
        ("temperature", temperature, 0, 100),
        ("top_k", top_k, 0, 2**31),
        ("min_p", min_p, 0, 1),
        ("seed", seed, 0, 2**64 - 1),
    ):
        if not low <= value <= high:
            raise ValueError(f"sampling.{name}: expected {low} .. {high}, got {value}")
    if not 0 < top_p <= 1:
        raise ValueError(f"sampling.top_p: expected above 0 and at most 1, got {top_p}")
    return Sampling(
        temperature=torch.tensor(float(temperature), device=device),
        top_k=torch.tensor(int(top_k), device=device),
        top_p=torch.tensor(float(top_p), device=device),
        min_p=torch.tensor(float(min_p), device=device),
        seed=torch.tensor([seed & 0xFFFFFFFF, seed >> 32], device=device),
        greedy=temperature == 0,
    )
