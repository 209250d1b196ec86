"""The definition."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.rms_norm.reference import rms_norm


def fake(
    tokens: Tensor, drafts: Tensor | None, pos: Tensor, embed: Tensor, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = len(tokens) + (0 if drafts is None else len(drafts))
    ids, places = (tokens.new_empty(rows) for _ in range(2))
    x, y = (embed.new_empty(rows, embed.shape[1]) for _ in range(2))
    return ids, places, x, y


@variant("embed_norm", "reference", fake)
def embed_norm(
    tokens: Tensor, drafts: Tensor | None, pos: Tensor, embed: Tensor, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """tokens and drafts int64 [n] and [m], pos int64 scalar, embed [vocab, d], gain [d].

    Gives, for n + m rows, the ids that are read and the places of the rows' own tokens, int64; the
    ids' rows of `embed`, and those normed [n + m, d].
    """
    ids = tokens if drafts is None else torch.cat([tokens, drafts])
    ids = ids.clamp(min=0)
    places = pos + torch.arange(1, len(ids) + 1, device=ids.device)
    x = F.embedding(ids, embed)
    return ids, places, x, rms_norm(x, gain, eps)
