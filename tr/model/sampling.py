"""How tokens are drawn, as tensors on the device, so that a captured step needs no host.

Logits pass penalties, then the bias, then temperature, then min-p, top-k and top-p in this order;
temperature 0 takes the largest after the bias. What is off costs nothing: which parts are on is
structure, and a step is compiled for it.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tr.tree import static, tree

GREEDY_BELOW = 1e-5  # temperatures that would only overflow
BIASES = 1024  # ids that a bias may name; fewer are padded, so that other ones fit the same graph


@tree
class Sampling:
    """temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 leave the distribution whole.

    frequency is taken off once for every time a token was written, presence once if it was at all;
    both look at written tokens only. repetition divides a positive logit and multiplies another one
    of each token of the prompt and the answer. Every row of a verify step counts the drafts before
    it as written (kernels/penalize). `bias` is added to the logits of `bias_ids`; id -1 is unused.

    Never written in place: other settings are another object.
    """

    temperature: Float[Tensor, ""]
    top_k: Int64[Tensor, ""]
    top_p: Float[Tensor, ""]
    min_p: Float[Tensor, ""]
    presence: Float[Tensor, ""]
    frequency: Float[Tensor, ""]
    repetition: Float[Tensor, ""]
    bias_ids: Int64[Tensor, " biases"]
    bias: Float[Tensor, " biases"]
    seed: Int64[Tensor, "2"]  # two 32-bit halves
    greedy: bool = static()  # temperature 0, for who must know it without reading the device
    cuts: bool = static()  # top_k, top_p or min_p takes something away
    adjusts: bool = static()  # a penalty or the bias changes logits


def sampling(
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    logit_bias: Mapping[int, float] | None = None,
) -> Sampling:
    """Checked settings; raises ValueError naming the field and its range.

    A temperature below 1e-5 is 0.
    """
    biases = dict(logit_bias or {})
    for name, value, low, high in (
        ("temperature", temperature, 0, 100),
        ("top_k", top_k, 0, 2**31),
        ("min_p", min_p, 0, 1),
        ("seed", seed, 0, 2**64 - 1),
        ("presence_penalty", presence_penalty, -2, 2),
        ("frequency_penalty", frequency_penalty, -2, 2),
        *((f"logit_bias[{token}]", value, -100, 100) for token, value in biases.items()),
        *(("logit_bias: token id", token, 0, 2**31 - 1) for token in biases),
    ):
        if not low <= value <= high:
            raise ValueError(f"sampling.{name}: expected {low} .. {high}, got {value}")
    if not 0 < top_p <= 1:
        raise ValueError(f"sampling.top_p: expected above 0 and at most 1, got {top_p}")
    if not 0 < repetition_penalty <= 10:
        raise ValueError(
            "sampling.repetition_penalty: expected above 0 and at most 10, got"
            f" {repetition_penalty}"
        )
    if len(biases) > BIASES:
        raise ValueError(f"sampling.logit_bias: expected at most {BIASES} ids, got {len(biases)}")
    if temperature < GREEDY_BELOW:
        temperature = 0.0
    penalties = presence_penalty != 0 or frequency_penalty != 0 or repetition_penalty != 1
    unused = BIASES - len(biases) if biases else 0

    def number(value: float) -> Tensor:
        return torch.tensor(float(value), device=device)

    return Sampling(
        temperature=number(temperature),
        top_k=torch.tensor(int(top_k), device=device),
        top_p=number(top_p),
        min_p=number(min_p),
        presence=number(presence_penalty),
        frequency=number(frequency_penalty),
        repetition=number(repetition_penalty),
        bias_ids=torch.tensor([*biases, *[-1] * unused], dtype=torch.int64, device=device),
        bias=torch.tensor([*biases.values(), *[0.0] * unused], dtype=torch.float32, device=device),
        seed=torch.tensor([seed & 0xFFFFFFFF, seed >> 32], device=device),
        greedy=temperature == 0,
        cuts=top_k > 0 or top_p < 1 or min_p > 0,
        adjusts=penalties or bool(biases),
    )


def noiseless(s: Sampling) -> Sampling:
    """`s` for a draft that proposes its own best token: it looks greedy."""
    return replace(s, greedy=True)


def check_bias(s: Sampling, ids: int) -> None:
    """Raises ValueError where the bias names a token that a model of `ids` tokens lacks."""
    if len(s.bias_ids) and (largest := int(s.bias_ids.max())) >= ids:
        raise ValueError(
            f"sampling.logit_bias: token id {largest} is not among the model's {ids} tokens; take"
            " it out"
        )
