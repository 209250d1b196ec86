"""Responses in the target's own words: many prompts of one length continued at once."""

import torch
from torch import Tensor

from tr.model import text
from tr.tree import unchecked


@torch.inference_mode()
def regenerate(
    params: text.Params, prompts: Tensor, tokens: int, temperature: Tensor, ids: int, seed: int
) -> Tensor:
    """prompts [batch, n] int64 and temperature [batch] (0: greedy) -> [batch, n + tokens].

    Only the first `ids` token ids are drawn. Pure batched decoding: state is threaded, not donated.
    """
    generator = torch.Generator(prompts.device).manual_seed(seed)
    past = text.init_past(params, prompts.shape[0])
    hidden, _, past = text.sequence(params, past, prompts, (), "train")
    out = [prompts]
    with unchecked():  # a check takes longer than a layer
        for i in range(tokens):
            token = _draw(params.head.sequence(hidden[:, -1])[:, :ids], temperature, generator)
            out.append(token[:, None])
            if i + 1 < tokens:
                hidden, _, past = text.sequence(params, past, token[:, None], (), "recurrent")
    return torch.cat(out, 1)


def _draw(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """One id a row: argmax(logits / T + Gumbel noise), or argmax(logits) where T is 0."""
    uniform = torch.rand(logits.shape, generator=generator, device=logits.device)
    noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 2**-24)))
    return (logits.float() + temperature[:, None] * noise).argmax(-1)
