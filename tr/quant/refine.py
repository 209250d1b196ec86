"""After GPTQ: scales and minimums fitted to its codes, and codes to these, in turns.

Both lower E H E^T, the error at a layer's output, where E = Q - W: a row's scales and minimums all
at once, by least squares; codes one input after another, each to the level nearest to its best
value beside what all the others are (GPTQ looks at later inputs only). Neither can raise it.
Source: coordinate descent on codes as in QuantEase (arXiv 2309.01885).
"""

import torch
from torch import Tensor

from kernels.int4_matmul.layout import GROUP
from tr.quant.gptq import G, Rounded, damped
from tr.quant.grid import Uniform, restore, with_zero

ROWS = 2048  # whose normal equations are held at once, at most
HELD = 2**30  # numbers of the largest of their tensors: 4 GiB
RIDGE = 1e-6  # of their mean diagonal, for groups of equal codes


def refine(
    weight: Tensor,
    h: Tensor,
    start: Rounded[Uniform],
    damp: float,
    rounds: int,
    integer: bool = False,
) -> Rounded[Uniform]:
    """`start` for weight [n, k] after so many rounds of both; `integer`: zero points stay so."""
    h, w = damped(h, damp).float(), weight.float()
    for _ in range(rounds):
        scale = torch.cat([g.scale for g in start.grids], 1)
        minimum = torch.cat([g.minimum for g in start.grids], 1)
        fitted = refit(w, h, start.codes, scale, minimum, integer)
        pairs = zip(*(t.split(1, 1) for t in fitted), strict=True)
        start = sweep(w, h, Rounded(start.codes, [Uniform(s, m) for s, m in pairs]))
    return start


def values(codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """[n, k] fp32 of codes [n, k] and parameters [n, groups]."""
    q = codes.unflatten(1, (-1, GROUP))
    return restore(q, scale[..., None], minimum[..., None]).flatten(1)


def cost(w: Tensor, h: Tensor, q: Tensor) -> Tensor:
    """E H E^T by row: [n]."""
    e = q - w
    return ((e @ h) * e).sum(1)


def refit(
    w: Tensor,
    h: Tensor,
    codes: Tensor,
    scale: Tensor,
    minimum: Tensor,
    integer: bool = False,
) -> tuple[Tensor, Tensor]:
    """scale and minimum [n, groups] bfloat16 of least cost; a row keeps its own where rounding
    makes the new ones no better, or a scale would turn.
    """
    groups = scale.shape[1]
    blocks = h.unflatten(0, (groups, GROUP)).unflatten(2, (groups, GROUP))  # [g, a, f, b]
    ones = blocks.sum((1, 3))  # 1^T H 1 between groups
    found = []
    step = max(1, min(ROWS, HELD // (w.shape[1] * groups)))
    for rows in range(0, len(w), step):
        part = slice(rows, rows + step)
        c = codes[part].unflatten(1, (groups, GROUP))
        right = (w[part] @ h).unflatten(1, (groups, GROUP))
        hc = torch.einsum("gafb,nfb->ngaf", blocks, c)
        cc = torch.einsum("nga,ngaf->ngf", c, hc)
        c1 = torch.einsum("gaf,nga->ngf", blocks.sum(3), c)
        top = torch.cat([cc, c1], 2)
        low = torch.cat([c1.transpose(1, 2), ones.expand_as(cc)], 2)
        normal = torch.cat([top, low], 1).double()  # [n, 2 groups, 2 groups]
        b = torch.cat([(c * right).sum(2), right.sum(2)], 1).double()
        mean = normal.diagonal(dim1=1, dim2=2).mean(1)
        normal.diagonal(dim1=1, dim2=2).add_(RIDGE * mean[:, None])
        factor = torch.linalg.cholesky(normal)
        found.append(torch.cholesky_solve(b[..., None], factor)[..., 0])
    s, m = (t.bfloat16() for t in torch.cat(found).chunk(2, 1))
    s, m = with_zero(s, m) if integer else (s, m)
    old, new = (cost(w, h, values(codes, *pair)) for pair in ((scale, minimum), (s, m)))
    better = ((new < old) & (s > 0).all(1))[:, None]
    return torch.where(better, s, scale), torch.where(better, m, minimum)


def sweep(w: Tensor, h: Tensor, start: Rounded[G]) -> Rounded[G]:
    """Codes [n, k] after each input in turn took the level of least cost beside the others."""
    codes, e = start.codes.clone(), start.values - w
    power, group = h.diagonal(), w.shape[1] // len(start.grids)
    for i in range(w.shape[1]):
        grid, own = start.grids[i // group], slice(i, i + 1)
        others = e @ h[:, own] - e[:, own] * power[i]
        code = grid.codes(w[:, own] - others / power[i])
        codes[:, own] = code
        e[:, own] = grid.values(code) - w[:, own]
    return Rounded(codes, start.grids)
