"""The definition: one row a call over exactly the keys that it sees."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.hadamard import unrotated
from kernels.kvarn import RING, TILE, edge, keys, values
from kernels.precision import wide


def fake(
    q: Tensor,
    gate: Tensor,
    sink: Tensor,
    ring: Tensor,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
    pos: Tensor,
) -> Tensor:
    return torch.empty_like(gate)


@variant("kvarn_attention", "reference", fake)
def kvarn_attention(
    q: Tensor,
    gate: Tensor,
    sink: Tensor,
    ring: Tensor,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
    pos: Tensor,
) -> Tensor:
    """q [rows, heads, d] in fp32, rotated; gate [rows, heads d] -> [rows, heads d] as the gate.

    sink [2, kv_heads, 128, d] and ring [2, kv_heads, 256, d]; codes, scales [kv_heads, tiles, ...]
    and means [2, kv_heads, d] as in kernels/kvarn.py.
    """
    out = []
    for i in range(q.shape[0]):
        p = int(pos) + i
        first = max(edge(p), 1)
        packed = slice(1, first)
        index = torch.arange(first * TILE, max(p + 1, first * TILE), device=q.device) % RING
        newest = wide(ring[:, :, index])
        k = keys(k_codes[:, packed], k_scales[:, packed], means[0][:, None])
        v = values(v_codes[:, packed], v_scales[:, packed], means[1][:, None])
        parts = (wide(sink[:, :, : p + 1]), torch.stack([k, v]).flatten(2, 3), newest)
        k, v = torch.cat(parts, 2)[:, None].to(q.dtype)
        a = F.scaled_dot_product_attention(q[i][None, :, None], k, v, enable_gqa=True)
        out.append(unrotated(a).flatten().to(gate.dtype) * gate[i].sigmoid())
    return torch.stack(out)
