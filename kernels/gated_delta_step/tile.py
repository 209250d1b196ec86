"""Rows together everywhere but in the recurrence: elementwise work fills whole vectors.

The heads' gates are padded to 64 lanes so that a vector's scalar tail, which rounds exp and sigmoid
differently, is never used; sums run along one row; the convolution adds its taps in order.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.gated_delta_absorb.reference import gated_delta_absorb as absorb
from kernels.gated_delta_chunk import unit
from kernels.gated_delta_step.reference import MUTATES, fake, gated_norm
from kernels.precision import wide

LANES = 64
SUPPORT = Support(multiples={"channels": LANES, "inner": LANES})


def _lanes(x: Tensor) -> Tensor:
    """x [rows, n], widened, zero-padded to a multiple of 64 columns."""
    return F.pad(wide(x), (0, -x.shape[1] % LANES))


@variant("gated_delta_step", "tile", fake, MUTATES, SUPPORT)
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
    """As the reference; channels and v_heads d_v must be multiples of 64."""
    v_heads, d_k, d_v = h.shape
    rows, channels = qkvz.shape[0], conv_weight.shape[0]
    k_heads, dtype = past_k.shape[1], qkvz.dtype
    if channels % LANES or (v_heads * d_v) % LANES:
        raise ValueError(
            f"gated_delta_step: tile needs channels and v_heads * d_v to be multiples of {LANES},"
            f" got {channels} and {v_heads * d_v}; use kernel.gated_delta_step=reference"
        )
    absorb(h, tail, past_x, past_k, past_u, past_decay, int(pending))
    x, z = qkvz.split([channels, v_heads * d_v], -1)
    past_x[:rows] = x
    window = wide(torch.cat([tail, x]))
    taps = wide(conv_weight).unbind(1)
    c = taps[0] * window[:rows]
    for j, tap in enumerate(taps[1:], 1):
        c = c + tap * window[j : j + rows]
    c = wide(F.silu(wide(c.to(dtype))).to(dtype))
    q, k, v = c.split([k_heads * d_k, k_heads * d_k, v_heads * d_v], -1)
    q = unit(q.view(rows, k_heads, d_k)) / d_k**0.5
    k = unit(k.view(rows, k_heads, d_k))
    past_k[:rows] = k
    q, k = (t.repeat_interleave(v_heads // k_heads, 1) for t in (q, k))
    v = v.view(rows, v_heads, d_v)
    b, a = ba.split(v_heads, -1)
    beta = wide(_lanes(b).sigmoid()[:, :v_heads].to(dtype))
    g = F.softplus(_lanes(wide(a) + dt_bias))
    decay = _lanes(-_lanes(a_log[None]).exp()[:, :v_heads] * g[:, :v_heads]).exp()[:, :v_heads]
    past_decay[:rows] = decay
    s = h.clone()
    o = torch.empty_like(v)
    outer = torch.empty_like(h)
    for i in range(rows):
        s.mul_(decay[i][:, None, None])
        u = torch.sub(v[i], torch.bmm(k[i][:, None], s)[:, 0], out=past_u[i]).mul_(beta[i][:, None])
        s.add_(torch.mul(k[i][:, :, None], u[:, None, :], out=outer))
        torch.bmm(q[i][:, None], s, out=o[i][:, None])
    y = gated_norm(o.to(dtype), z.reshape(rows, v_heads, d_v), norm_weight, eps)
    return y.flatten(1)
