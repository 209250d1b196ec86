"""The definition: row by row, each operation as transformers' single-token path orders it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.gated_delta_absorb.reference import gated_delta_absorb as absorb
from kernels.gated_delta_chunk import gated_norm, unit
from kernels.precision import wide

MUTATES = ("h", "tail", "past_x", "past_k", "past_u", "past_decay")


def fake(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    past_x: Tensor,
    past_k: Tensor,
    past_u: Tensor,
    past_decay: Tensor,
    pending: Tensor,
    eps: float,
) -> Tensor:
    return qkvz.new_empty(qkvz.shape[0], h.shape[0] * h.shape[2])


@variant("gated_delta_step", "reference", fake, MUTATES)
def gated_delta_step(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    past_x: Tensor,
    past_k: Tensor,
    past_u: Tensor,
    past_decay: Tensor,
    pending: Tensor,
    eps: float,
) -> Tensor:
    """qkvz [rows, channels + v_heads d_v], ba [rows, 2 v_heads] = [b | a] -> [rows, v_heads d_v].

    conv_weight [channels, width], a_log and dt_bias [v_heads], norm_weight [d_v]. Overwritten:
    h fp32 [v_heads, d_k, d_v], tail [width - 1, channels], and the records of up to `capacity`
    rows: past_x [capacity, channels], past_k fp32 [capacity, k_heads, d_k], past_u fp32
    [capacity, v_heads, d_v], past_decay fp32 [capacity, v_heads]. `pending` is an int64 scalar.
    """
    v_heads, d_k, d_v = h.shape
    k_heads = past_k.shape[1]
    absorb(h, tail, past_x, past_k, past_u, past_decay, int(pending))
    x, z = qkvz.split([conv_weight.shape[0], v_heads * d_v], -1)
    window = torch.cat([tail, x])
    width = conv_weight.shape[1]
    s = h
    out = []
    for i in range(x.shape[0]):
        c = F.conv1d(window[i : i + width].t()[None], conv_weight[:, None], groups=x.shape[1])
        q, k, v = F.silu(c)[0, :, 0].split([k_heads * d_k, k_heads * d_k, v_heads * d_v])
        q, k = (unit(wide(t.view(k_heads, d_k))) for t in (q, k))
        past_k[i] = k
        q, k = (t.repeat_interleave(v_heads // k_heads, 0) for t in (q / d_k**0.5, k))
        b, a = ba[i].split(v_heads)
        beta = wide(b.sigmoid())
        g = -wide(a_log).exp() * F.softplus(wide(a) + dt_bias)
        decay = g.exp()
        s = s * decay[:, None, None]
        u = (wide(v.view(v_heads, d_v)) - (s * k[:, :, None]).sum(1)) * beta[:, None]
        s = s + k[:, :, None] * u[:, None, :]
        o = (s * q[:, :, None]).sum(1)
        past_x[i], past_u[i], past_decay[i] = x[i], u, decay
        out.append(gated_norm(o.to(x.dtype), z[i].view(v_heads, d_v), norm_weight, eps))
    return torch.stack(out).flatten(1)
