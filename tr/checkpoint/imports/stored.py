"""One matrix as a checkpoint stores it, and the two ways to read it: as numbers and as codes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.int4_matmul.layout import GROUP
from tr.checkpoint.files import Entry, Tensors
from tr.checkpoint.imports.declared import Declared


@dataclass(frozen=True)
class Stored:
    """File tensors that make up one tensor of the model, by what follows its name in the files."""

    name: str  # as the files spell it, without what follows
    shape: tuple[int, ...]  # as the model has it
    parts: Mapping[str, str]  # what follows -> the file tensor
    files: Tensors
    format: "Format"
    declared: Declared
    dtype: torch.dtype  # the model's

    @property
    def foreign(self) -> bool:
        """Whether it is stored in other than the model's own way."""
        return self.format.name != "plain" or bool(self.files.restores)

    @property
    def spelled(self) -> str:
        """The name of what holds its codes or numbers, in the files."""
        return next(iter(self.parts.values()))

    def entry(self, part: str) -> Entry:
        return self.files.entries[self.parts[part]]

    def read(self, part: str, start: int = 0, stop: int | None = None) -> Tensor:
        """A part, or its rows start..stop."""
        return self.files.read(self.parts[part], start, stop)

    def numbers(self, part: str) -> Tensor:
        """A part that holds scales or minimums; raises ValueError where one is no finite number."""
        read = self.read(part)
        self.finite(read, part)
        return read

    def finite(self, numbers: Tensor, part: str = "") -> None:
        """Raise ValueError unless all `numbers`, read from `part`, are finite."""
        if not numbers.float().isfinite().all():
            name = self.parts[part] if part else self.spelled
            raise ValueError(f"{name} holds infinite or missing numbers; download it again")

    @property
    def nbytes(self) -> int:
        return sum(self.files.entries[name].nbytes for name in self.parts.values())

    def open(self) -> "Opened":
        return self.format.open(self)


@dataclass(frozen=True)
class Grid:
    """What codes stand for, by output row and group of inputs: weight = (code - zero) * scale in
    fp32, or code * scale + minimum, rounded once to scale's dtype.
    """

    scale: Tensor  # [n, groups]
    zero: Tensor  # integers, [n, groups] or one for all
    bits: int
    minimum: Tensor | None = None  # [n, groups] in place of zero
    index: Tensor | None = None  # [k]: the group of each input; None: equal runs, in order

    def weight(self, codes: Tensor, start: int, wide: bool = False) -> Tensor:
        """The numbers of rows start.. with these codes [rows, k]; `wide`: before the rounding."""
        rows = slice(start, start + len(codes))
        scale = self.scale[rows].float()
        low = self.minimum
        shift = (self.zero if self.zero.dim() == 0 else self.zero[rows]) if low is None else low
        shift = shift.float() if low is None else low[rows].float()
        if self.index is not None:
            scale = scale[:, self.index]
            shift = shift if shift.dim() == 0 else shift[:, self.index]
            q = codes.float()
        else:
            q = codes.float().unflatten(1, (scale.shape[1], -1))
            scale, shift = scale[..., None], shift if shift.dim() == 0 else shift[..., None]
        w = (q - shift) * scale if low is None else q * scale + shift
        w = w if self.index is not None else w.flatten(1)
        return w if wide else w.to(self.scale.dtype)

    def fits(self, k: int) -> bool:
        """Whether the kernels' int4 layout has room for the codes of k inputs."""
        whole = k % GROUP == 0 and k // self.groups % GROUP == 0
        return self.bits <= 4 and self.index is None and whole

    def int4(self, k: int) -> tuple[Tensor, Tensor, bool]:
        """Scale and minimum [n, k / 128] bfloat16, and whether they are these numbers exactly."""
        scale = self.scale.float()
        low = -self.zero.float() * scale if self.minimum is None else self.minimum.float()
        near = [t.bfloat16() for t in (scale, low)]
        exact = all(torch.equal(a.float(), b) for a, b in zip(near, (scale, low), strict=True))
        repeat = k // self.groups // GROUP
        scale, low = (t.repeat_interleave(repeat, 1) for t in near)
        return scale, low, exact

    @property
    def groups(self) -> int:
        return self.scale.shape[1]


def sound() -> None:
    """No further check."""


@dataclass(frozen=True)
class Opened:
    """How to read rows start..stop: `weight` gives the numbers that the format's own library
    restores; `codes` [rows, k] uint8 and their grid, where it has codes. `check` raises ValueError
    for codes that cannot be what they are declared to be.
    """

    weight: Callable[[int, int], Tensor]
    grid: Grid | None = None
    codes: Callable[[int, int], Tensor] | None = None
    check: Callable[[], None] = sound


@dataclass(frozen=True)
class Format:
    """`takes`: whether these file tensors, by what follows the name, are one of its matrices.

    `complaint`: what is wrong with their shapes and dtypes, None: nothing. `parts`: all that may
    follow a name.
    """

    name: str
    parts: tuple[str, ...]
    takes: Callable[[Mapping[str, Entry], Declared], bool]
    complaint: Callable[[Stored], str | None]
    open: Callable[[Stored], Opened]


def by_codes(
    stored: Stored, grid: Grid, codes: Callable[[int, int], Tensor], symmetric: bool
) -> Opened:
    """An opened matrix of integer codes; zero points that are not `symmetric` get checked."""

    def weight(start: int, stop: int) -> Tensor:
        return grid.weight(codes(start, stop), start)

    check = sound if symmetric else partial(centred, stored, grid, codes)
    return Opened(weight, grid, codes, check)


def nibbles(words: Tensor, bits: int) -> Tensor:
    """Words [..., w] int32 of 32 / bits fields, the lowest first -> [..., 32 w / bits] uint8."""
    if bits == 4:
        packed = words.contiguous().view(torch.uint8)
        return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    shift = bits * torch.arange(32 // bits, dtype=torch.int32)
    return ((words[..., None] >> shift) & (2**bits - 1)).to(torch.uint8).flatten(-2)


def wrong(stored: Stored, part: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> str | None:
    """The complaint where a part is missing or has another shape or dtype."""
    if part not in stored.parts:
        return f"{stored.name}.{part} {list(shape)} is missing"
    entry = stored.entry(part)
    where = f"in {entry.file.name}"
    if entry.shape != shape:
        expected = f"expected shape {list(shape)}"
        return f"{stored.parts[part]}: {expected}, found {list(entry.shape)} {where}"
    if entry.dtype not in dtypes:
        expected = f"expected {' or '.join(dtypes)}"
        return f"{stored.parts[part]}: {expected}, found {entry.dtype} {where}"
    return None


def first(*complaints: str | None) -> str | None:
    return next((c for c in complaints if c), None)


def centred(stored: Stored, grid: Grid, codes: Callable[[int, int], Tensor]) -> None:
    """Raise ValueError where zero points are one off: codes then miss zero by a whole step.

    Weights are spread around zero, some three steps wide, so the mean of code - zero over a matrix
    is near 0; a zero point stored by another convention moves it by 1.
    """
    n = min(stored.shape[0], 512)
    zero = grid.zero if grid.zero.dim() == 0 else grid.zero[:n].float()
    zero = zero[:, grid.index] if grid.index is not None else zero
    q = codes(0, n).float()
    if grid.index is None and zero.dim():
        q = q.unflatten(1, (zero.shape[1], -1)).mean(-1)
    off = (q - zero).mean().item()
    if 0.7 < abs(off) < 1.3:
        raise ValueError(
            f"{stored.name}: codes lie {off:.2f} steps from their zero points on average, so these"
            " are stored by another convention than config.json declares (GPTQ: checkpoint_format"
            " gptq stores zero - 1, gptq_v2 stores zero); correct the declaration"
        )
