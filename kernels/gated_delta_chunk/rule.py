"""The gated delta rule over many tokens: the recurrence, and the chunked form of it.

Per head, with state h [d_k, d_v]:  h = exp(g) h;  u = beta (v - h^T k);  h = h + k u^T;  o = h^T q.
The chunked form solves one unit lower triangular system per chunk instead of stepping through it.
Both take l2-normalised q and k, scale q by d_k ** -0.5, are differentiable, and leave inputs alone.
`unit` and `gated_norm` are what stands before and after the rule in a mixer.
Source: Gated DeltaNet (arXiv 2412.06464); operation order as in transformers' Qwen3_5 classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.precision import wide
from tr.jit import fused


def unit(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6) along the last axis."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """o, z [..., d_v] -> rms-normed o, rounded, times weight, times silu(z) in fp32, rounded."""
    of = wide(o)
    y = of * torch.rsqrt(of.pow(2).mean(-1, keepdim=True) + eps)
    return ((weight * y.to(o.dtype)) * F.silu(wide(z))).to(o.dtype)


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token; fp32. q, k [batch, heads, tokens, d_k], v [..., d_v], g, beta [..., tokens].

    h [batch, heads, d_k, d_v] is the entry state; returns (o [batch, heads, tokens, d_v], h).
    """
    q = q / q.shape[-1] ** 0.5
    out = []
    for t in range(q.shape[2]):
        h = h * g[:, :, t].exp()[..., None, None]
        u = v[:, :, t] - (h * k[:, :, t, :, None]).sum(-2)
        u = u * beta[:, :, t, None]
        h = h + k[:, :, t, :, None] * u[:, :, None]
        out.append((h * q[:, :, t, :, None]).sum(-2))
    return torch.stack(out, 2), h


def unit_lower_inverse(a: Tensor) -> Tensor:
    """(I + tril(a, -1))^-1 for a [..., n, n], n a power of two, by recursive blocks.

    Two diagonal blocks of size s become one of 2 s: its lower left corner is -D C A. The values
    come without a graph; one Newton step then carries the gradient, which is exact at a solution.
    """
    n = a.shape[-1]
    a = a.tril(-1)
    with torch.no_grad():
        inverse = torch.ones_like(a[..., :1]).unsqueeze(-1)  # [..., blocks = n, 1, 1]
        size = 1
        while size < n:
            blocks = a.unflatten(-1, (-1, 2 * size)).unflatten(-3, (-1, 2 * size))
            corner = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., size:, :size]
            top, bottom = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
            left = torch.cat([top, -bottom @ corner @ top], -2)
            right = torch.cat([torch.zeros_like(bottom), bottom], -2)
            inverse = torch.cat([left, right], -1)
            size *= 2
        inverse = inverse.squeeze(-3)
    if not a.requires_grad:
        return inverse
    return 2 * inverse - inverse @ (inverse + a @ inverse)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    h: Tensor,
    chunk: int = 64,
    train: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `recurrent`, `chunk` tokens at a time; a split at a multiple of `chunk` changes no bit.

    `train` forms the triangular inverse by matmuls, fast and differentiable on a GPU; otherwise
    the systems are solved as transformers does it.
    """
    tokens = q.shape[2]
    q = q * q.shape[-1] ** -0.5
    pad = -tokens % chunk
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, pad)) for x in (g, beta))
    q, k, v, g, beta = (x.unflatten(2, (-1, chunk)) for x in (q, k, v, g, beta))
    parts = (_inside_fused if train else _inside)(q, k, v, g, beta, train)
    out = []
    for u_own, k_entry, q_entry, inner, k_exit, decay in zip(
        *(x.unbind(2) for x in parts), strict=True
    ):
        u = u_own - k_entry @ h
        out.append(q_entry @ h + inner @ u)
        h = h * decay + k_exit.transpose(-1, -2) @ u
    return torch.stack(out, 2).flatten(2, 3)[:, :, :tokens], h


def _inside(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, invert: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All that a chunk needs before it meets the state; inputs [batch, heads, chunks, chunk, ...].

    In order: own corrections u, what they owe the entry state, queries and keys decayed to the
    chunk's start and end, scores inside the chunk, and the decay over all of it.
    """
    v_beta, k_beta = v * beta[..., None], k * beta[..., None]
    total = g.cumsum(-1)
    chunk = q.shape[-2]
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    pair = (total[..., :, None] - total[..., None, :]).masked_fill(future, -torch.inf).exp()
    system = (k_beta @ k.transpose(-1, -2)) * pair
    inner = (q @ k.transpose(-1, -2)) * pair
    k_entry = k_beta * total.exp()[..., None]
    if invert:
        inverse = unit_lower_inverse(system)
        u_own, k_entry = inverse @ v_beta, inverse @ k_entry
    else:
        u_own, k_entry = (
            torch.linalg.solve_triangular(system, x, upper=False, unitriangular=True)
            for x in (v_beta, k_entry)
        )
    q_entry = q * total.exp()[..., None]
    k_exit = k * (total[..., -1:] - total).exp()[..., None]
    return u_own, k_entry, q_entry, inner, k_exit, total[..., -1].exp()[..., None, None]


_inside_fused = fused(_inside)
