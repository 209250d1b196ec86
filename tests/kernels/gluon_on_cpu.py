"""Runs Gluon kernels on CPU tensors: their own Python code over torch, one thread a program.

Layouts mean nothing here, shared memory is a tensor that starts as NaN, a fused multiply-add and
a tensor core's sum are rounded once, and programs and their warps really run side by side.
An mbarrier counts arrivals and bytes, and a copy lands when its reader waits for it, no sooner;
until then NaN is there, or integers of ones. What a layout or a barrier of threads gets wrong, this
does not see; what an index, a mask or a message between programs or warps gets wrong, it does.
"""

import itertools
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction

SHIFT = 40  # an address is the number of its tensor above, the element below these bits
PATIENCE = 10  # seconds that a wait may take; all that is run here takes less


class Value(Tensor):
    """A tensor with the one method that torch spells otherwise."""

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Tensor:
        return self.view(dtype) if bitcast else super().to(dtype)


def value(x: Any) -> Value:
    return torch.as_tensor(x).as_subclass(Value)


class Pointer:
    """Addresses of elements, into tensors that a launch was given."""

    def __init__(self, tensors: list[Tensor], address: Tensor, element: torch.dtype) -> None:
        self.tensors, self.address = tensors, address
        self.dtype = types.SimpleNamespace(element_ty=element)
        self.shape = address.shape

    def _moved(self, address: Any) -> "Pointer":
        return Pointer(self.tensors, value(address), self.dtype.element_ty)

    def __add__(self, offset: Any) -> "Pointer":
        return self._moved(self.address + torch.as_tensor(offset).long())

    def __getitem__(self, index: Any) -> "Pointer":
        return self._moved(self.address[index])

    def each(self, mask: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(flat tensor, where the addresses that point into it are, elements) of each tensor."""
        at = torch.as_tensor(self.address)
        on = torch.ones_like(at, dtype=torch.bool) if mask is None else mask
        on = torch.as_tensor(on).broadcast_to(at.shape)
        for number in (at[on] >> SHIFT).unique().tolist():
            here = on & (at >> SHIFT == number)
            yield _flat(self.tensors[number]), here, at[here] & ((1 << SHIFT) - 1)


def _flat(x: Tensor) -> Tensor:
    """The memory from x's first element on."""
    here = x.storage_offset()
    return x.as_strided((x.untyped_storage().nbytes() // x.itemsize - here,), (1,), here)


class Tiles:
    """A tensor descriptor as a kernel sees it."""

    def __init__(self, made: TensorDescriptor) -> None:
        self.base, self.layout, self.dtype = made.base, made.layout, made.base.dtype
        self.block_type = types.SimpleNamespace(shape=list(made.block_shape))

    def box(self, start: list[Any]) -> Tensor:
        """The box that starts there; zeros past the end."""
        begin, sizes = [int(i) for i in start], self.block_type.shape
        assert min(begin) >= 0
        part = self.base[tuple(slice(i, i + n) for i, n in zip(begin, sizes, strict=True))]
        out = self.base.new_zeros(sizes)
        out[tuple(slice(n) for n in part.shape)] = part
        return out


class Shared:
    layout = None

    def __init__(self, memory: Tensor) -> None:
        self.memory, self.dtype, self.shape = memory, memory.dtype, memory.shape

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.memory.permute(order))

    def slice(self, start: int, length: int, dim: int) -> "Shared":
        return Shared(self.memory.narrow(dim, start, length))

    def spoil(self) -> "Shared":
        """Fill with what no reader may meet: NaN, -1 (two bfloat16 NaN) where that is none."""
        self.memory.fill_(float("nan") if self.dtype.is_floating_point else -1)
        return self

    def index(self, i: Any) -> "Shared":
        assert 0 <= int(i) < self.shape[0]
        return Shared(self.memory[int(i)])

    def reinterpret(self, dtype: torch.dtype, shape: list[int], layout: Any) -> "Shared":
        return Shared(self.memory.view(dtype).view(shape))

    def load(self, layout: Any) -> Value:
        return value(self.memory.clone())

    def store(self, x: Tensor) -> None:
        assert x.shape == self.shape and x.dtype == self.dtype
        self.memory.copy_(x)


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes that they expect are here."""

    def __init__(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = self.parity = 0
        self.copies: list[tuple[Shared, Tensor]] = []
        self.changed = threading.Condition()

    def arrive(self, count: int, expected: int = 0) -> None:
        with self.changed:
            assert self.pending >= count, "an mbarrier got more arrivals than it counts"
            self.pending -= count
            self.bytes += expected
            self._land()

    def copy(self, tiles: Tiles, start: list[Any], shared: Shared) -> None:
        box = tiles.box(start)
        assert box.shape == shared.shape and box.dtype == shared.dtype
        with self.changed:
            self.copies.append((shared.spoil(), box))
            self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self._land(True) != parity, PATIENCE):
                raise TimeoutError(
                    f"an mbarrier's phase of parity {int(parity)} did not end: {self.pending} of"
                    f" {self.count} arrivals and {self.bytes} bytes are missing"
                )

    def _land(self, waited: bool = False) -> int:
        """The parity of the phase that is under way."""
        while waited and self.copies:
            shared, box = self.copies.pop()
            shared.store(box)
            self.bytes -= box.nbytes
        if self.pending == 0 and self.bytes == 0:
            self.parity, self.pending = self.parity ^ 1, self.count
            self.changed.notify_all()
        return self.parity


class Barriers:
    """Stands for the module mbarrier."""

    def __init__(self) -> None:
        self.at: dict[int, Barrier] = {}  # by address; a program's live as long as it runs

    def MBarrierLayout(self) -> None:  # noqa: N802
        return None

    def of(self, shared: Shared) -> Barrier:
        return self.at[shared.memory.data_ptr()]

    def init(self, shared: Shared, count: int) -> None:
        self.at[shared.memory.data_ptr()] = Barrier(count)

    def expect(self, shared: Shared, nbytes: int) -> None:
        self.of(shared).arrive(1, nbytes)  # an arrival too, as in Triton

    def arrive(self, shared: Shared, count: int) -> None:
        self.of(shared).arrive(count)

    def wait(self, shared: Shared, phase: int) -> None:
        self.of(shared).wait(phase)

    def bulk_copy(self, tiles: Tiles, start: list[Any], bar: Shared, shared: Shared) -> None:
        self.of(bar).copy(tiles, start, shared)


class Copies(threading.local):
    """Stands for the module async_copy: a thread's copies land when it waits for them."""

    def __init__(self, load: Callable[..., Value]) -> None:
        self.load, self.begun = load, []

    def copy(self, shared: Shared, at: Pointer, mask: Any) -> None:
        self.begun.append((shared.spoil(), self.load(at, mask, 0.0)))

    def commit_group(self) -> None:
        pass

    def wait_group(self, pending: int) -> None:
        assert pending == 0
        while self.begun:
            shared, x = self.begun.pop()
            shared.store(x)


class Product:
    """A tensor core's sum that is under way: its operands are read when it is waited for."""

    def __init__(self, a: Any, b: Shared, c: Any) -> None:
        self.a, self.b, self.c, self.result = a, b, c, None

    def finish(self) -> None:
        a = self.a.memory if isinstance(self.a, Shared) else self.a
        c = self.c.result if isinstance(self.c, Product) else self.c
        self.result = value((a.double() @ self.b.memory.double() + c.double()).float())


class Products(threading.local):
    """Stands for warpgroup_mma and its wait: a thread's products end in order."""

    def __init__(self) -> None:
        self.begun: list[Product] = []

    def mma(self, a: Any, b: Shared, c: Any, use_acc: bool = True, is_async: bool = False) -> Any:
        assert is_async
        self.begun.append(Product(a, b, c if use_acc else torch.zeros_like(c)))
        return self.begun[-1]

    def wait(self, pending: int, deps: tuple[Product, ...]) -> Any:
        """Sums that are still under way may be added to, but have no numbers."""
        while len(self.begun) > pending:
            self.begun.pop(0).finish()
        sums = [x if x.result is None else x.result for x in deps]
        return tuple(sums) if len(sums) > 1 else sums[0]


class Language:
    """Stands for triton.experimental.gluon.language, and for triton.language beside it."""

    float32, bfloat16, float16 = torch.float32, torch.bfloat16, torch.float16
    int16, int32, int64 = torch.int16, torch.int32, torch.int64
    abs, rsqrt, log, log2 = torch.abs, torch.rsqrt, torch.log, torch.log2
    static_range, full_like, zeros_like = range, torch.full_like, torch.zeros_like

    def __init__(self, grid: tuple[int, ...]) -> None:
        self.grid, self.program, self.lock = grid, threading.local(), threading.Lock()
        self.barriers, self.copies, self.products = Barriers(), Copies(self.load), Products()
        for name in ("BlockedLayout", "SliceLayout", "SwizzledSharedLayout", "debug_barrier"):
            setattr(self, name, lambda *arguments: None)
        for name in ("DistributedLinearLayout", "DotOperandLayout", "NVMMADistributedLayout"):
            setattr(self, name, lambda *arguments: None)
        self.NVMMASharedLayout = lambda *arguments: None
        for name in ("convert_layout", "multiple_of", "max_contiguous"):
            setattr(self, name, lambda x, *arguments, **named: x)

    def stand_ins(self) -> dict[int, Any]:
        """What a kernel's module has of Triton, by id -> what stands for it; of 3.6 and of 3.9."""
        found = {id(language): self, id(triton.language): self, id(mma_v2): self.mma_v2}
        found |= {id(mbarrier): self.barriers, id(async_copy): self.copies}
        found |= {id(warpgroup_mma): self.products.mma, id(fence_async_shared): lambda: None}
        found |= {id(warpgroup_mma_wait): self.products.wait}
        loads = ("async_copy_global_to_shared", "async_load")
        for owner, names, stands in (
            (tma, loads, self.barriers.bulk_copy),
            (async_copy, loads, self.copies.copy),
            (
                language.shared_memory_descriptor,
                ("_reinterpret", "reinterpret"),
                Shared.reinterpret,
            ),
            (language, ("thread_barrier", "barrier"), lambda: None),
        ):
            found |= {id(getattr(owner, name)): stands for name in names if hasattr(owner, name)}
        return found

    def program_id(self, axis: int) -> int:
        return self.program.place[axis]

    def num_programs(self, axis: int) -> int:
        return self.grid[axis]

    def warp_specialize(self, parts: list, warps: list[int], registers: list[int]) -> None:
        place = self.program.place

        def part(fn: Callable[..., None], arguments: tuple) -> None:
            self.program.place = place
            fn(*arguments)

        side_by_side(partial(part, *x) for x in parts)

    def mma_v2(self, a: Tensor, b: Tensor, c: Tensor) -> Value:
        return value((a.double() @ b.double() + c.double()).float())

    def arange(self, start: int, stop: int, layout: Any) -> Value:
        return value(torch.arange(start, stop, dtype=torch.int32))

    def zeros(self, shape: list[int], dtype: torch.dtype, layout: Any) -> Value:
        return value(torch.zeros(shape, dtype=dtype))

    def full(self, shape: list[int], x: float, dtype: torch.dtype, layout: Any) -> Value:
        return value(torch.full(shape, x, dtype=dtype))

    def allocate_shared_memory(self, dtype: torch.dtype, shape: list[int], layout: Any) -> Shared:
        return Shared(torch.empty(shape, dtype=dtype)).spoil()

    def minimum(self, a: Any, b: Any) -> Value:
        return value(torch.minimum(torch.as_tensor(a), torch.as_tensor(b)))

    def maximum(self, a: Any, b: Any) -> Value:
        return value(torch.maximum(torch.as_tensor(a), torch.as_tensor(b)))

    def where(self, on: Any, a: Any, b: Any) -> Any:
        if isinstance(a, Pointer):
            return a._moved(torch.where(on, a.address, b.address))
        return value(torch.where(torch.as_tensor(on), a, b))

    def fma(self, a: Tensor, b: Tensor, c: Tensor) -> Value:
        return value((a.double() * b.double() + c.double()).float())

    def broadcast(self, a: Tensor, b: Tensor) -> Any:
        return torch.broadcast_tensors(a, b)

    def reshape(self, x: Tensor, shape: list[int]) -> Tensor:
        return x.reshape(shape)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([a, b], -1)

    def gather(self, x: Tensor, index: Tensor, axis: int) -> Tensor:
        return x.gather(axis, index.long())

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., 0], x[..., 1]

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x.double()).float()  # torch's fp32 one depends on the shape

    def exp2(self, x: Tensor) -> Tensor:
        return torch.exp2(x.double()).float()

    def sum(self, x: Tensor, axis: int | None = None) -> Tensor:
        """Halves on each other, as lanes do it; torch's order depends on the shape."""
        x, axis = (x.flatten(), 0) if axis is None else (x, axis)
        while (n := x.shape[axis]) > 1:
            assert n % 2 == 0
            x = x.narrow(axis, 0, n // 2) + x.narrow(axis, n // 2, n // 2)
        return x.squeeze(axis)

    def max(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(axis)

    def inline_asm_elementwise(
        self, asm: Any, constraints: str, args: list, *_: Any, **named: Any
    ) -> Any:
        (x,), asm = args, getattr(asm, "value", asm)
        if "0x43004300" in asm:  # bfloat16 of 128 + code, of each of the four codes
            return tuple(value(128 + (x >> i & 15)).bfloat16() for i in (0, 4, 8, 12))
        if "bar.warp.sync" in asm:
            return x
        if "0xA380A380" in asm:  # 2^-9 of code - 7.5, of each of the four codes of a word
            return tuple(value(((x >> i & 15) - 7.5) / 512).half() for i in (0, 4, 8, 12))
        if "e4m3x2" in asm or "0xE480E480" in asm:  # each of a word's four bytes
            kind = torch.float8_e4m3fn if "e4m3x2" in asm else torch.int8
            each = torch.stack([x >> i & 255 for i in (0, 8, 16, 24)]).to(torch.uint8)
            return tuple(value(part).half() for part in each.as_subclass(Tensor).view(kind))
        if "ex2" in asm:
            return value(torch.exp2(x))
        if "rcp" in asm:
            return value(1 / x)
        return value((x.bfloat16() if "cvt.rn.bf16x2" in asm else x).float())

    def load(self, at: Pointer, mask: Any = None, other: Any = float("nan"), **named: Any) -> Value:
        dtype = at.dtype.element_ty
        out = torch.zeros(at.shape, dtype=dtype)
        if dtype.is_floating_point or other == other:
            out.fill_(other)
        for flat, here, element in at.each(mask):
            out[here] = flat[element]
        return value(out)

    def store(self, at: Pointer, x: Any, mask: Any = None) -> None:
        x = torch.as_tensor(x, dtype=at.dtype.element_ty).broadcast_to(at.shape)
        for flat, here, element in at.each(mask):
            flat[element] = x[here]

    def atomic_add(self, at: Pointer, x: Any, mask: Any = None, sem: str = "acq_rel") -> Value:
        with self.lock:
            before = self.load(at, mask)
            self.store(at, before + x, mask)
        return before


def plain(fn: Any, stand_ins: dict[int, Any], scopes: dict[int, dict[str, Any]]) -> Callable:
    """The Python function of a kernel or a helper, with stand-ins for Triton, as all it calls."""
    seen = fn.__globals__
    if id(seen) not in scopes:
        scope = scopes[id(seen)] = {}
        for name, x in seen.items():
            if id(x) in stand_ins:
                x = stand_ins[id(x)]
            elif isinstance(x, triton.language.constexpr):
                x = x.value
            elif isinstance(getattr(x, "fn", None), types.FunctionType):
                x = plain(x.fn, stand_ins, scopes)
            scope[name] = x
        scope["PLAIN"] = False  # torch rounds rightly
    return types.FunctionType(fn.__code__, scopes[id(seen)], fn.__name__, fn.__defaults__)


def side_by_side(calls: Iterable[Callable[[], None]]) -> None:
    """Run each on a thread of its own; raise the first error of any, whatever the others do."""
    ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
            ends.put(None)
        except BaseException as error:
            ends.put(error)

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for _ in threads:
        if (error := ends.get()) is not None:
            raise error


def run(fn: JITFunction, grid: tuple[int, ...], arguments: tuple, named: dict[str, Any]) -> None:
    gl, tensors = Language(grid), [x for x in arguments if isinstance(x, Tensor)]
    kernel = plain(fn.fn, gl.stand_ins(), {})
    named = {name: x for name, x in named.items() if name in fn.arg_names}
    pointers = (Pointer(tensors, value(i << SHIFT), x.dtype) for i, x in enumerate(tensors))
    made = [
        next(pointers)
        if isinstance(x, Tensor)
        else Tiles(x)
        if isinstance(x, TensorDescriptor)
        else x
        for x in arguments
    ]

    def program(place: tuple[int, ...]) -> None:
        gl.program.place = place
        kernel(*made, **named)

    places = itertools.product(*(range(n) for n in grid))
    side_by_side(partial(program, place) for place in places)


@contextmanager
def launches() -> Iterator[None]:
    """Within, `kernel[grid](...)` runs here."""

    def getitem(fn: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **named: run(fn, grid, arguments, named)

    with patch.object(JITFunction, "__getitem__", getitem):
        yield
