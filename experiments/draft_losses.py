"""What a block draft and an MTP chain are trained on: the target's own distribution, row by row."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tr.drafts import dflash2_net as net
from tr.model import layer, mtp, text
from tr.nn.formats.dense import Dense


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) of two logit tensors [..., vocab], in nats per row."""
    p = F.log_softmax(teacher.float(), -1)
    return (p.exp() * (p - F.log_softmax(student.float(), -1))).sum(-1)


def pick_anchors(
    first: int, last: int, batch: int, count: int, generator: torch.Generator
) -> Tensor:
    """`count` distinct sorted positions in first .. last - 1 for each sequence: [batch, count]."""
    keys = torch.rand(batch, last - first, generator=generator, device=generator.device)
    return keys.topk(count, -1).indices.sort(-1).values + first


def dflash2_loss(
    params: net.Params,
    embed: Tensor,
    head: Dense,
    tokens: Tensor,
    taps: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Loss of blocks at `anchors` [batch, n] of sequences tokens [batch, s] that the target wrote.

    taps and hidden are the target's residuals and final hidden of those tokens. Row k of a block
    learns the target's distribution after token anchor + k - 1, with weight exp(-(k - 1) / gamma);
    the selector learns to pick the target's choice among the row's best candidates, given the true
    predecessor. Also returns the mean overlap sum min(p, q) per row [block - 1].
    """
    c = params.config
    batch, count = anchors.shape
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand(batch, -1)
    past = net.context(params, taps, positions)
    step = torch.arange(c.block, device=tokens.device)
    at = (anchors[..., None] + step).flatten(1)  # [batch, n block]
    ids = torch.full_like(at, c.mask_token)
    ids[:, :: c.block] = tokens.gather(1, anchors)
    first = anchors.repeat_interleave(c.block, 1)[..., None]
    keys = positions[:, None]
    seen = (keys < first) & (at[..., None] - keys < c.window)
    rows = net.block(params, past, F.embedding(ids, embed), at, seen)
    rows = rows.unflatten(1, (count, c.block))[:, :, 1:]  # [batch, n, block - 1, d]
    before = (anchors[..., None] + step[:-1]).flatten(1)
    teacher = head.sequence(hidden.gather(1, before[..., None].expand(-1, -1, hidden.shape[-1])))
    teacher = teacher.unflatten(1, (count, c.block - 1)).detach()
    student = net.logits(params, head, rows, head.weight.shape[0])
    weight = torch.exp(-(step[1:] - 1) / gamma)
    weight = weight / weight.sum()
    loss = (divergence(teacher, student).mean((0, 1)) * weight).sum()

    label = teacher.argmax(-1)
    scores, best = student.topk(c.selector_top, -1)
    missing = (best != label[..., None]).all(-1)
    best = torch.cat([best[..., :-1], torch.where(missing, label, best[..., -1])[..., None]], -1)
    scores = student.gather(-1, best)
    predecessor = tokens.gather(1, before).unflatten(1, (count, c.block - 1))
    pairs = net.pair_scores(params, rows, predecessor, best, scores).float()
    chosen = (best == label[..., None]).int().argmax(-1)
    select = F.cross_entropy(pairs.flatten(0, -2), chosen.flatten(), reduction="none")
    loss = loss + (select.view_as(label).mean((0, 1)) * weight).sum()
    with torch.no_grad():
        p, q = teacher.float().softmax(-1), student.float().softmax(-1)
        overlap = torch.minimum(p, q).sum(-1).mean((0, 1))
    return loss, overlap


def mtp_loss(
    params: mtp.Params,
    target: text.Params,
    tokens: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    depth: int,
) -> Tensor:
    """KL of a chain of `depth` guesses, each fed the head's own output of the one before."""
    loss, state = tokens.new_zeros((), dtype=torch.float32), hidden
    usable = tokens.shape[1] - depth - 1
    anchors = anchors.clamp(max=usable - 1)
    width = hidden.shape[-1]
    for d in range(1, depth + 1):
        past = layer.init_past(params.layer, tokens.shape[0])
        shifted = tokens[:, d : d + usable]
        state, _ = mtp.sequence(params, past, target.embed, shifted, state[:, :usable], target.rope)
        student = target.head.sequence(state.gather(1, anchors[..., None].expand(-1, -1, width)))
        at = (anchors + d)[..., None].expand(-1, -1, width)
        teacher = target.head.sequence(hidden.gather(1, at)).detach()
        loss = loss + divergence(teacher, student).mean() / depth
    return loss
