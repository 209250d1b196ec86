"""A tensor stored as numbers: any floating dtype, or one that the files restore themselves."""

from collections.abc import Mapping

from torch import Tensor

from tr.checkpoint.files import Entry
from tr.checkpoint.imports.declared import Declared
from tr.checkpoint.imports.stored import Format, Opened, Stored

BITS = {"BF16": 16, "F16": 16, "F32": 32, "F64": 64}


def _takes(parts: Mapping[str, Entry], _: Declared) -> bool:
    return set(parts) in ({"weight"}, {""})


def _complaint(stored: Stored) -> str | None:
    (name,) = stored.parts.values()
    entry = stored.files.entries[name]
    if entry.dtype in BITS or entry.dtype in stored.files.restores:
        return None
    return (
        f"{name}: expected a floating dtype ({', '.join(BITS)}), found {entry.dtype} in"
        f" {entry.file.name}; quantized weights are read with the scales beside them"
    )


def _open(stored: Stored) -> Opened:
    (name,) = stored.parts.values()

    def weight(start: int, stop: int) -> Tensor:
        return stored.files.read(name, start, stop).reshape(stop - start, *stored.shape[1:])

    return Opened(weight)


FORMAT = Format("plain", ("weight", ""), _takes, _complaint, _open)
