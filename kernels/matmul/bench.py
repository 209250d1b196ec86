"""Every matrix of a model, in bf16; the gates' projection is never anything else."""

from typing import Any

from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths


def shapes(c: Widths) -> dict[str, tuple[int, int]]:
    """Output and input width of every matrix that a step of the target or its MTP head reads.

    Equal shapes appear once.
    """
    found = {name: (n, k) for name, (_, n, k) in c.matrices.items()}
    found["mtp fc"] = c.d_model, 2 * c.d_model
    first = {shape: name for name, shape in reversed(found.items())}
    return {name: shape for name, shape in found.items() if first[shape] == name}


def cases(c: Widths) -> dict[str, Sizes]:
    found = shapes(c) | {"delta in_ba": (2 * c.v_heads, c.d_model)}
    return {name: {"splits": [n], "k": k} for name, (n, k) in found.items()}


def inputs(draw: Draw, rows: int, splits: list[int], k: int) -> list[Any]:
    return [draw(rows, k), draw(sum(splits), k).mul_(k**-0.5), splits]


def nbytes(x: Tensor, weight: Tensor, splits: list[int]) -> int:
    return x.nbytes + weight.nbytes + x.shape[0] * sum(splits) * x.element_size()


BENCH = (Bench("matmul", cases, inputs, nbytes),)
