"""What became of each file tensor: held exactly, repacked, rounded or requantised."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

#: exact: held bit for bit as the format's own library restores it
#: repacked: its own integer codes, with scales and minimums that restore the same numbers
#: rounded: the library's numbers, rounded once to the model's dtype
#: requantised: other codes, or its own codes with rounded scales and minimums
#: quantised: plain in the file, codes here
KINDS = ("exact", "repacked", "rounded", "requantised", "quantised")


@dataclass(frozen=True)
class Held:
    """One tensor of the model's files. Errors are those of what is held against the library's
    numbers: the largest one, and in the Frobenius norm relative to theirs. Of a matrix that came
    to other codes they are those of its whole stack, against numbers in the model's dtype.
    None: not measured.
    """

    name: str
    format: str
    kind: str
    stored_bytes: int
    max_error: float | None = 0.0
    relative_error: float | None = 0.0


@dataclass
class Error:
    """Accumulates differences by blocks."""

    largest: float = 0.0
    squares: float = 0.0
    total: float = 0.0

    def add(self, held: Tensor, right: Tensor) -> None:
        right = right.float().flatten()
        off = held.float().flatten() - right
        low, high = (x.item() for x in off.aminmax())
        self.largest = max(self.largest, high, -low)
        self.squares += off.dot(off).item()
        self.total += right.dot(right).item()

    @property
    def relative(self) -> float:
        return (self.squares / self.total) ** 0.5 if self.total else 0.0

    def on(self, held: Held, kind: str) -> Held:
        """`held` as `kind` if there was any error."""
        if not self.largest:
            return held
        return replace(held, kind=kind, max_error=self.largest, relative_error=self.relative)


@dataclass(frozen=True)
class Summary:
    """Counts and bytes by kind and by format."""

    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    formats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def summary(report: Iterable[Held]) -> Summary:
    report = tuple(report)
    kinds = {kind: [h for h in report if h.kind == kind] for kind in KINDS}
    formats: dict[str, list[Held]] = {}
    for held in report:
        formats.setdefault(held.format, []).append(held)
    return Summary(
        {kind: _figures(rows) for kind, rows in kinds.items() if rows},
        {name: _figures(rows) for name, rows in formats.items()},
    )


def _figures(rows: list[Held]) -> dict[str, Any]:
    errors = [h.max_error for h in rows if h.max_error is not None]
    relative = [h.relative_error for h in rows if h.relative_error is not None]
    return {
        "tensors": len(rows),
        "stored_bytes": sum(h.stored_bytes for h in rows),
        "largest_error": max(errors, default=None),
        "largest_relative_error": max(relative, default=None),
    }


def sentences(report: Iterable[Held]) -> tuple[str, ...]:
    """Warnings: one for each way in which quantised tensors are not held as they were stored."""
    worst: dict[str, list[Held]] = {}
    for held in report:
        if held.format != "plain" and held.kind in ("rounded", "requantised"):
            worst.setdefault(held.kind, []).append(held)
    means = {
        "rounded": "restored and rounded to the model's dtype",
        "requantised": "requantised to int4 with bfloat16 scales",
    }
    found = []
    for kind, rows in worst.items():
        top = max(rows, key=lambda h: h.relative_error or 0.0)
        found.append(
            f"{len(rows)} quantised tensors were {means[kind]}: relative error at most"
            f" {top.relative_error or 0.0:.1e} ({top.name}), largest error"
            f" {max(h.max_error or 0.0 for h in rows):.1e}"
        )
    return tuple(found)
