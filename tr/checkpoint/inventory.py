"""The strict match between a model's tensors and a checkpoint's: none missing, none left over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from tr.checkpoint.files import Entry
from tr.checkpoint.names import Source, Table
from tr.nn.formats.dense import Dense

_BITS = {"BF16": 16, "F16": 16, "F32": 32, "F64": 64}
_SHOWN = 8  # complaints in one error


@dataclass(frozen=True)
class Slot:
    """A params tensor and how many rows each of its stacked matrices has."""

    tensor: Tensor
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What to read: names as the files spell them, in stacking order, per params tensor."""

    reads: Mapping[str, tuple[str, ...]]
    copies: Mapping[str, str]  # name in the files -> params tensor it must equal
    skipped: tuple[str, ...]
    rounded: tuple[str, ...]  # stored wider than the model's dtype


def slots(params: Any) -> dict[str, Slot]:
    """Every tensor of a pytree by key path."""
    leaves, _ = pytree.tree_flatten_with_path(params, is_leaf=lambda x: isinstance(x, Dense))
    found = {}
    for path, leaf in leaves:
        key = pytree.keystr(path).lstrip(".")
        if isinstance(leaf, Dense):
            found[f"{key}.weight"] = Slot(leaf.weight, leaf.splits)
        elif isinstance(leaf, Tensor):
            found[key] = Slot(leaf, tuple(leaf.shape[:1]))
    return found


def file_shape(slot: Slot, source: Source, part: int) -> tuple[int, ...]:
    """The shape that the `part`-th file tensor of a params tensor has."""
    shape = (slot.rows[part], *slot.tensor.shape[1:])
    if source.unit_axis is not None:
        shape = (*shape[: source.unit_axis], 1, *shape[source.unit_axis :])
    return shape


def match(params: Any, table: Table, entries: Mapping[str, Entry]) -> Plan:
    """Give each params tensor its file tensors; raise ValueError listing everything that is off.

    Any floating dtype is accepted, and cast to the params tensor's: older releases keep A_log and
    the Gated DeltaNet norm in F32.
    """
    wanted = slots(params)
    complaints: list[str] = []
    by_name: dict[str, str] = {}
    for name in sorted(entries):
        short = table.canonical(name)
        if short in by_name:
            complaints.append(f"{name} and {by_name[short]} are the same tensor; remove one")
        by_name[short] = name
    reads, rounded = {}, []
    for key, source in table.sources.items():
        slot = wanted[key]
        assert len(source.names) == len(slot.rows), key
        for part, short in enumerate(source.names):
            shape = file_shape(slot, source, part)
            if short not in by_name:
                complaints.append(f"{table.spell(short)} {list(shape)} is missing (for {key})")
                continue
            name = by_name[short]
            complaint = _check(name, entries[name], shape)
            if complaint:
                complaints.append(complaint)
            elif _BITS[entries[name].dtype] > 8 * slot.tensor.element_size():
                rounded.append(name)
        reads[key] = tuple(by_name.get(short, short) for short in source.names)
    copies = {by_name[short]: key for short, key in table.copies.items() if short in by_name}
    for name, key in copies.items():
        complaint = _check(name, entries[name], tuple(wanted[key].tensor.shape))
        if complaint:
            complaints.append(complaint)
    used = {name for names in reads.values() for name in names} | set(copies)
    skipped = []
    for short, name in by_name.items():
        if name in used:
            continue
        if short.startswith(tuple(table.skip)):
            skipped.append(name)
        else:
            entry = entries[name]
            complaints.append(
                f"{name} {list(entry.shape)} {entry.dtype} in {entry.file.name} is unknown: "
                "no tensor of this model takes it"
            )
    if complaints:
        raise ValueError(_report(complaints))
    return Plan(reads, copies, tuple(skipped), tuple(rounded))


def _check(name: str, entry: Entry, shape: tuple[int, ...]) -> str | None:
    if entry.shape != shape:
        return (
            f"{name}: expected shape {list(shape)}, found {list(entry.shape)} in {entry.file.name}"
        )
    if entry.dtype not in _BITS:
        return (
            f"{name}: expected a floating dtype ({', '.join(_BITS)}), found {entry.dtype} in "
            f"{entry.file.name}; quantized weights are not read here"
        )
    return None


def _report(complaints: list[str]) -> str:
    more = len(complaints) - _SHOWN
    lines = [*complaints[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    head = "checkpoint and config.json disagree; use the config.json that belongs to these weights"
    return "\n  ".join([f"{head}:", *lines])
