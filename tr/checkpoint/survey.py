"""What a checkpoint will be held as, and what its tensors amount to, without holding the model."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.int4_matmul.layout import GROUP, ROWS, TILE
from tr.checkpoint.imports.hold import packs
from tr.checkpoint.imports.report import Held
from tr.checkpoint.imports.table4 import tabled
from tr.checkpoint.load import Arrive, Found, Loading
from tr.model.config import LINEAR, ModelConfig
from tr.nn.formats.dense import Dense
from tr.nn.formats.matrix import stays


@dataclass(frozen=True)
class Size:
    """What one of the roofline's items holds: numbers, and bytes of int4 and of table4."""

    numbers: int = 0
    tiles: int = 0
    tables: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def nbytes(self, element: float) -> float:
        """With `element` bytes a number."""
        return self.numbers * element + self.tiles + self.tables


def sizes(found: Found, rounding: bool, packed: bool, table: bool = False) -> dict[str, Size]:
    """Of the large matrices and the head for drafts, as they will be loaded. Scales are read, codes
    are not.

    `rounding`: what was quantised becomes int4 whatever it takes; `packed`: whatever is held as
    numbers becomes codes, int4 or those of a `table`.
    """
    total = {"MTP head": Size()}
    leaves, _ = pytree.tree_flatten_with_path(found.shapes, is_leaf=lambda x: isinstance(x, Dense))
    for path, leaf in leaves:
        key = pytree.keystr(path).lstrip(".")
        name = item(key, found.config)
        if name is None or not isinstance(leaf, Dense | Tensor):
            continue
        size = _size(found, key, leaf, rounding, packed, table)
        total[name] = total.get(name, Size()) + size
    return total


def _size(
    found: Found, key: str, leaf: Dense | Tensor, rounding: bool, packed: bool, table: bool
) -> Size:
    if isinstance(leaf, Tensor):
        return Size(leaf.numel())
    n, k = leaf.weight.shape
    stored = found.plan.reads[f"{key}.weight"]
    foreign = any(one.foreign for one in stored)
    tables = not (foreign and rounding) and tabled(stored)
    coded = packed or tables or (foreign and rounding)
    if foreign and not tables and (table or not coded):
        own = packs(stored, [one.open() for one in stored], rounding=False)
        coded, table = coded or own, table and not own
    if stays((n, k), key) or not coded:
        return Size(n * k)
    nbytes = -(-n // ROWS) * (k // GROUP) * TILE * 2
    return Size(tables=nbytes + n) if table or tables else Size(tiles=nbytes)


def item(key: str, config: ModelConfig) -> str | None:
    """The roofline's name for what is at a key path; None: it is counted otherwise."""
    if key.startswith("mtp."):
        return "MTP head"
    if key == "text.lm_head":
        return "lm_head"
    layer, _, matrix = key.removeprefix("text.layers[").partition("].")
    part, _, last = matrix.partition(".")
    if part == "mlp":
        return f"mlp {last}"
    if last not in ("in_qkvz", "qkv", "out"):
        return None
    kind = "delta" if config.layer_types[int(layer)] == LINEAR else "attention"
    return f"{kind} {last}"


def stream(
    found: Found, arrive: Arrive | None = None, requantise: Arrive | None = None
) -> Iterator[Held]:
    """Decode every tensor as loading would, and let it go: what became of each."""
    loading = Loading(found.files, found.plan, "cpu", arrive, requantise)
    return streamed(loading, found.with_tables("cpu"))


def streamed(loading: Loading, params: Any) -> Iterator[Held]:
    """The same of any params, by their shapes."""
    for piece in loading.pieces(params):
        report = piece.report
        del piece  # before the next one is read
        yield from report
