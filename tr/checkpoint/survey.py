"""What a checkpoint will be held as, and what its tensors amount to, without holding the model."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.int4_matmul.layout import GROUP, ROWS, TILE
from tr.checkpoint.imports.hold import packs
from tr.checkpoint.imports.report import Held
from tr.checkpoint.load import Arrive, Found, Loading
from tr.model.config import LINEAR, ModelConfig
from tr.nn.formats.dense import Dense
from tr.nn.formats.matrix import stays


@dataclass(frozen=True)
class Size:
    """What one of the roofline's items holds: numbers, and bytes of int4 tiles."""

    numbers: int = 0
    tiles: int = 0

    def nbytes(self, element: float) -> float:
        """With `element` bytes a number."""
        return self.numbers * element + self.tiles


def sizes(found: Found, rounding: bool, packed: bool) -> dict[str, Size]:
    """Of the large matrices and the head for drafts, as they will be loaded. Scales are read, codes
    are not.

    `rounding`: what was quantised becomes int4 whatever it takes; `packed`: everything does.
    """
    total = {"MTP head": Size()}
    leaves, _ = pytree.tree_flatten_with_path(found.shapes, is_leaf=lambda x: isinstance(x, Dense))
    for path, leaf in leaves:
        key = pytree.keystr(path).lstrip(".")
        name = item(key, found.config)
        if name is None or not isinstance(leaf, Dense | Tensor):
            continue
        before, size = total.get(name, Size()), _size(found, key, leaf, rounding, packed)
        total[name] = Size(before.numbers + size.numbers, before.tiles + size.tiles)
    return total


def _size(found: Found, key: str, leaf: Dense | Tensor, rounding: bool, packed: bool) -> Size:
    if isinstance(leaf, Tensor):
        return Size(leaf.numel())
    n, k = leaf.weight.shape
    stored = found.plan.reads[f"{key}.weight"]
    foreign = any(one.foreign for one in stored)
    coded = packed or (foreign and rounding)
    if foreign and not coded:
        coded = packs(stored, [one.open() for one in stored], rounding=False)
    if stays((n, k), key) or not coded:
        return Size(n * k)
    return Size(0, -(-n // ROWS) * (k // GROUP) * TILE * 2)


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
    for piece in loading.pieces(found.with_tables("cpu")):
        report = piece.report
        del piece  # before the next one is read
        yield from report
