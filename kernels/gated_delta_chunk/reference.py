"""The definition: every token of a call at once, as transformers' many-token path orders it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.gated_delta_chunk.rule import chunked, gated_norm, unit
from kernels.precision import wide

MUTATES = ("h", "tail")


def fake(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    eps: float,
) -> Tensor:
    return qkvz.new_empty(qkvz.shape[0], h.shape[0] * h.shape[2])


def silu_conv(window: Tensor, weight: Tensor) -> Tensor:
    """y[:, t] = silu(sum_j weight[:, j] window[:, t + j]), the sum rounded, and y.

    window [batch, past + tokens, channels] -> y [batch, tokens, channels].
    """
    conv = F.conv1d(window.transpose(1, 2), weight[:, None], groups=weight.shape[0])
    return F.silu(conv.transpose(1, 2))


def ready(
    c: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, k_heads: int, d_k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What the delta rule takes, fp32 and heads first: unit q and k per value head, v, g, beta.

    c [batch, tokens, channels] of q, k and v side by side; a, b [batch, tokens, v_heads].
    """
    v_heads, keys = a.shape[-1], k_heads * d_k
    q, k, v = c.split([keys, keys, c.shape[-1] - 2 * keys], -1)
    q, k = (t.unflatten(-1, (k_heads, d_k)) for t in (q, k))
    q, k = (t.repeat_interleave(v_heads // k_heads, 2) for t in (q, k))
    q, k, v = (_heads_first(t) for t in (q, k, v.unflatten(-1, (v_heads, -1))))
    g = _heads_first(-wide(a_log).exp() * F.softplus(wide(a) + dt_bias))
    return unit(q), unit(k), v, g, _heads_first(b.sigmoid())


@variant("gated_delta_chunk", "reference", fake, MUTATES)
def gated_delta_chunk(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    eps: float,
) -> Tensor:
    """qkvz [tokens, channels + v_heads d_v], ba [tokens, 2 v_heads] = [b | a] -> [.., v_heads d_v].

    conv_weight [channels, width], a_log and dt_bias [v_heads], norm_weight [d_v]. Overwritten:
    h fp32 [v_heads, d_k, d_v] and tail [width - 1, channels], which no record may be waiting for.
    A split of the tokens at a multiple of 64 changes no bit of rows, h or tail.
    """
    v_heads, d_k, d_v = h.shape
    channels = conv_weight.shape[0]
    x, z = qkvz.split([channels, v_heads * d_v], -1)
    b, a = ba[None].split(v_heads, -1)
    window = torch.cat([tail, x])[None]
    c = silu_conv(window, conv_weight)
    k_heads = (channels - v_heads * d_v) // (2 * d_k)
    o, end = chunked(*ready(c, a, b, a_log, dt_bias, k_heads, d_k), h[None])
    h.copy_(end[0])
    tail.copy_(window[0, x.shape[0] :])
    o = o[0].transpose(0, 1).to(x.dtype, memory_format=torch.contiguous_format)
    return gated_norm(o, z.unflatten(-1, (v_heads, d_v)), norm_weight, eps).flatten(1)


def _heads_first(x: Tensor) -> Tensor:
    """[batch, tokens, heads, ...] -> wide [batch, heads, tokens, ...], contiguous."""
    return wide(x).transpose(1, 2).contiguous()
