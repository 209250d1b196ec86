"""The definition: one row a call over exactly its live keys, as a token-by-token model does."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant


def fake(q: Tensor, gate: Tensor, k_cache: Tensor, v_cache: Tensor, pos: Tensor) -> Tensor:
    return torch.empty_like(gate)


@variant("attention_decode", "reference", fake)
def attention_decode(
    q: Tensor, gate: Tensor, k_cache: Tensor, v_cache: Tensor, pos: Tensor
) -> Tensor:
    """q [rows, heads, d], gate [rows, heads d], caches [kv_heads, capacity, d] -> [rows, heads d].

    Caches are in q's dtype or float8 e4m3, whose values are read as they are (scale 1). Their rows
    0 .. pos + rows - 1 are live; later ones are never read.
    """
    out = []
    for i in range(q.shape[0]):
        live = int(pos) + i + 1
        k, v = (cache[None, :, :live].to(q.dtype) for cache in (k_cache, v_cache))
        a = F.scaled_dot_product_attention(q[i][None, :, None], k, v, enable_gqa=True)
        out.append(a.flatten() * gate[i].sigmoid())
    return torch.stack(out)
