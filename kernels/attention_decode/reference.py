"""The definition: one row a call over exactly its live keys, as a token-by-token model does."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.codes import numbers
from kernels.define import variant
from kernels.hadamard import unrotated
from kernels.precision import wide


def fake(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    return torch.empty_like(gate)


@variant("attention_decode", "reference", fake)
def attention_decode(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """q [rows, heads, d], gate [rows, heads d], caches [kv_heads, capacity, d] -> [rows, heads d].

    Caches are in q's dtype or float8 e4m3, whose values are read as they are (scale 1); or int8, or
    uint8 [kv_heads, capacity, d / 2] of two codes each, with fp32 scales [kv_heads, capacity]
    (kernels/codes.py), read in fp32. With codes of 4 bits q is rotated as they are, and the output
    is turned back ahead of the gate. Rows 0 .. pos + rows - 1 are live; later ones are never read.
    """
    out = []
    for i in range(q.shape[0]):
        live = int(pos) + i + 1
        if k_scale is None or v_scale is None:
            x, k, v = q[i], k_cache[:, :live].to(q.dtype), v_cache[:, :live].to(q.dtype)
        else:
            x = wide(q[i])
            k, v = (
                numbers(codes[:, :live], x.dtype) * scale[:, :live, None]
                for codes, scale in ((k_cache, k_scale), (v_cache, v_scale))
            )
        a = F.scaled_dot_product_attention(x[None, :, None], k[None], v[None], enable_gqa=True)
        a = unrotated(a) if k_cache.dtype == torch.uint8 else a
        out.append(a.flatten().to(q.dtype) * gate[i].sigmoid())
    return torch.stack(out)
