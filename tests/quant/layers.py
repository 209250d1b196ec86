"""One layer's inputs and weights, and the error that codes make at its output."""

import torch

from tr.quant.hessian import Moments

N, K, TOKENS = 64, 256, 2048


def moments(x: torch.Tensor, right: torch.Tensor | None = None) -> Moments:
    made = Moments(torch.zeros(K, K))
    for i in range(0, len(x), 512):
        made.add(x[i : i + 512], None if right is None else right[i : i + 512])
    return made


def output_error(made, weight, x, right=None) -> float:
    y = (x if right is None else right) @ weight.t()
    return ((x @ made.weight(torch.bfloat16).float().t() - y).norm() / y.norm()).item()
