"""The strict match between a model's tensors and a checkpoint's: none missing, none left over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tr.checkpoint.files import Entry, Tensors
from tr.checkpoint.imports.declared import PLAIN, Scheme
from tr.checkpoint.imports.formats import UNUSED, recognise
from tr.checkpoint.imports.plain import BITS
from tr.checkpoint.imports.stored import Stored
from tr.checkpoint.names import Source, Table
from tr.nn.formats.dense import Dense

_SHOWN = 8  # complaints in one error


@dataclass(frozen=True)
class Slot:
    """A params tensor and how many rows each of its stacked matrices has."""

    tensor: Tensor
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What to read, in stacking order, per params tensor."""

    reads: Mapping[str, tuple[Stored, ...]]
    copies: Mapping[str, Stored]  # params tensor -> what must equal it
    skipped: tuple[str, ...]
    rounded: tuple[str, ...]  # plain ones stored wider than the model's dtype
    warnings: tuple[str, ...]


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


def match(params: Any, table: Table, files: Tensors, scheme: Scheme = PLAIN) -> Plan:
    """Give each params tensor its file tensors; raise ValueError listing everything that is off.

    Any floating dtype is accepted, and cast to the params tensor's: older releases keep A_log and
    the Gated DeltaNet norm in F32. A matrix may be in any format that `imports` reads: its own
    tensors decide which, and what `scheme` declares must not contradict them.
    """
    wanted, complaints = slots(params), []
    found, skipped = _sort(table, files, complaints)
    reads, rounded, plain, quantised = {}, [], [], []
    for key, source in table.sources.items():
        slot = wanted[key]
        assert len(source.names) == len(slot.rows), key
        stored = []
        for part, short in enumerate(source.names):
            shape = (slot.rows[part], *slot.tensor.shape[1:])
            spelled = file_shape(slot, source, part)
            parts = found.pop(_module(short), {})
            if not parts:
                complaints.append(
                    f"{table.spell(short)} {list(spelled)} is missing (for {key}){_hint(short)}"
                )
                continue
            one = _stored(short, shape, parts, files, scheme, slot.tensor.dtype)
            if isinstance(one, str) or (complaint := _complaint(one, spelled)):
                complaints.append(one if isinstance(one, str) else complaint)
                continue
            stored.append(one)
            if one.format.name != "plain":
                quantised.append(_module(short))
                continue
            bits = BITS.get(_only(one).dtype, 0)
            if bits > 8 * slot.tensor.element_size():
                rounded += one.parts.values()
            if len(shape) == 2 and source.unit_axis is None:
                plain.append(_module(short))
        reads[key] = tuple(stored)
    copies = {}
    for short, key in table.copies.items():
        if parts := found.pop(_module(short), None):
            tensor = wanted[key].tensor
            one = _stored(short, tuple(tensor.shape), parts, files, scheme, tensor.dtype)
            complaint = one if isinstance(one, str) else _complaint(one, tuple(tensor.shape))
            if complaint:
                complaints.append(complaint)
            elif not isinstance(one, str):
                copies[key] = one
    assert not found
    if complaints:
        raise ValueError(_report(complaints))
    warnings = _contradictions(scheme, plain, quantised)
    return Plan(reads, copies, tuple(skipped), tuple(rounded), warnings)


def _module(short: str) -> str:
    return short.removesuffix(".weight")


def _only(stored: Stored) -> Entry:
    (name,) = stored.parts.values()
    return stored.files.entries[name]


def _hint(short: str) -> str:
    if short != "lm_head.weight":
        return ""
    return "; where the head is the embedding itself, set tie_word_embeddings to true"


def _sort(
    table: Table, files: Tensors, complaints: list[str]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """File tensors by the matrix they belong to and what follows its name; those left unread."""
    known = {_module(s) for source in table.sources.values() for s in source.names}
    known |= {_module(short) for short in table.copies}
    by_name: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    skipped = []
    for name in sorted(files.entries):
        short = table.canonical(name)
        if short in by_name:
            complaints.append(f"{name} and {by_name[short]} are the same tensor; remove one")
        by_name[short] = name
        module = next((m for m in _ancestors(short) if m in known), None)
        part = short[len(module) + 1 :] if module else ""
        if short.rpartition(".")[2] in UNUSED or (
            module is None and short.startswith(tuple(table.skip))
        ):
            skipped.append(name)
        elif module is None:
            complaints.append(_unknown(name, files))
        else:
            found.setdefault(module, {})[part] = name
    return found, skipped


def _ancestors(short: str) -> tuple[str, ...]:
    """The name and those of up to two fewer parts: `x.weight.scale` belongs to x."""
    one = short.rpartition(".")[0]
    return short, one, one.rpartition(".")[0]


def _unknown(name: str, files: Tensors) -> str:
    entry = files.entries[name]
    return (
        f"{name} {list(entry.shape)} {entry.dtype} in {entry.file.name} is unknown: "
        "no tensor of this model takes it"
    )


def _stored(
    short: str,
    shape: tuple[int, ...],
    parts: Mapping[str, str],
    files: Tensors,
    scheme: Scheme,
    dtype: torch.dtype,
) -> Stored | str:
    """What the file tensors `parts` are, or the complaint that they are nothing known."""
    declared = scheme.of(_module(short))
    entries = {part: files.entries[name] for part, name in parts.items()}
    format = recognise(entries, declared)
    one = next(iter(sorted(parts.values())))
    if format is None or (format.name != "plain" and len(shape) != 2):
        held = ", ".join(f"{part} {entry.dtype}" for part, entry in entries.items())
        return f"{one}: no known format of a tensor {list(shape)} is made of {held}"
    if format.name != "plain" and not scheme.method:
        return f"{one}: it is stored quantised, and no quantization_config says how"
    for part, name in parts.items():
        if part not in format.parts:
            return _unknown(name, files)
    part = next(iter(parts))
    name = parts[part].removesuffix(part).removesuffix(".") if part else parts[part]
    return Stored(name, shape, parts, files, format, declared, dtype)


def _complaint(stored: Stored, spelled: tuple[int, ...]) -> str | None:
    if stored.format.name == "plain":
        entry, (name,) = _only(stored), stored.parts.values()
        if entry.shape != spelled:
            return (
                f"{name}: expected shape {list(spelled)}, found {list(entry.shape)}"
                f" in {entry.file.name}"
            )
    return stored.format.complaint(stored)


def _contradictions(scheme: Scheme, plain: list[str], quantised: list[str]) -> tuple[str, ...]:
    """Sentences where the declaration and the tensors disagree; the tensors decide."""
    if not scheme.method:
        return ()
    wide = [m for m in plain if scheme.expects(m)]
    narrow = [m for m in quantised if not scheme.expects(m)]
    warnings = []
    if wide:
        warnings.append(
            f"{len(wide)} matrices that the quantization config names are stored plain and were"
            f" read so, {wide[0]} among them"
        )
    if narrow:
        warnings.append(
            f"{len(narrow)} matrices that the quantization config leaves out are stored quantised"
            f" and were read so, {narrow[0]} among them"
        )
    return tuple(warnings)


def _report(complaints: list[str]) -> str:
    more = len(complaints) - _SHOWN
    lines = [*complaints[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    head = "checkpoint and config.json disagree; use the config.json that belongs to these weights"
    return "\n  ".join([f"{head}:", *lines])
