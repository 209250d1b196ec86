"""Heads that guess tokens further ahead while the target trains; they are not part of the model.

They make the hidden state carry what comes after the next token, which teaches a small model to
copy and gives a block draft something to read. Source: multi-token prediction (arXiv 2404.19737).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tr.model import text
from tr.nn.formats.dense import Dense, dense
from tr.tree import tree


@tree
class Params:
    heads: tuple[Dense, ...]  # head i [d_model, d_model] guesses the token i + 2 ahead


def init(count: int, d_model: int, generator: torch.Generator, dtype: torch.dtype) -> Params:
    return Params(heads=tuple(dense([d_model], d_model, generator, dtype) for _ in range(count)))


def loss(
    params: Params, target: text.Params, hidden: Tensor, tokens: Tensor, weight: Tensor
) -> Tensor:
    """Mean over the heads of their weighted cross-entropy, in nats.

    hidden [batch, n, d_model] belongs to tokens [batch, n + 1] without the last, weight to tokens.
    Of each head every second position is taken, even and odd in turn.
    """
    total = tokens.new_zeros((), dtype=torch.float32)
    n = hidden.shape[1]
    for i, head in enumerate(params.heads):
        at = slice(i % 2, n - i - 1, 2)
        truth = slice(i % 2 + i + 2, n + 1, 2)
        logits = target.head.sequence(head.sequence(hidden[:, at])).flatten(0, 1).float()
        nats = F.cross_entropy(logits, tokens[:, truth].flatten(), reduction="none")
        share = weight[:, truth].flatten()
        total = total + (nats * share).sum() / share.sum()
    return total / len(params.heads)
