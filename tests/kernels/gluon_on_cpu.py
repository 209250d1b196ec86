"""Runs Gluon kernels on CPU tensors: their own Python code over torch, one thread a program.

Layouts mean nothing here, shared memory is a tensor that starts as NaN, a fused multiply-add is
rounded once, and programs really run side by side. What a layout or a barrier gets wrong, this
does not see; what an index, a mask or a message between programs gets wrong, it does.
"""

import itertools
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language
from triton.runtime.jit import JITFunction

SHIFT = 40  # an address is the number of its tensor above, the element below these bits


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
            yield self.tensors[number].view(-1), here, at[here] & ((1 << SHIFT) - 1)


class Shared:
    def __init__(self, memory: Tensor) -> None:
        self.memory, self.dtype, self.shape = memory, memory.dtype, memory.shape

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


class Language:
    """Stands for triton.experimental.gluon.language, and for triton.language beside it."""

    float32, bfloat16, float16 = torch.float32, torch.bfloat16, torch.float16
    int32, int64 = torch.int32, torch.int64
    abs, exp, rsqrt, log = torch.abs, torch.exp, torch.rsqrt, torch.log
    static_range, full_like, zeros_like = range, torch.full_like, torch.zeros_like

    def __init__(self) -> None:
        self.program, self.lock = threading.local(), threading.Lock()
        for name in ("BlockedLayout", "SliceLayout", "SwizzledSharedLayout", "debug_barrier"):
            setattr(self, name, lambda *arguments: None)
        for name in ("convert_layout", "multiple_of", "max_contiguous"):
            setattr(self, name, lambda x, *arguments: x)

    def program_id(self, axis: int) -> int:
        return self.program.place[axis]

    def arange(self, start: int, stop: int, layout: Any) -> Value:
        return value(torch.arange(start, stop, dtype=torch.int32))

    def zeros(self, shape: list[int], dtype: torch.dtype, layout: Any) -> Value:
        return value(torch.zeros(shape, dtype=dtype))

    def allocate_shared_memory(self, dtype: torch.dtype, shape: list[int], layout: Any) -> Shared:
        return Shared(torch.full(shape, float("nan"), dtype=dtype))

    def minimum(self, a: Any, b: Any) -> Value:
        return value(torch.minimum(torch.as_tensor(a), torch.as_tensor(b)))

    def maximum(self, a: Any, b: Any) -> Value:
        return value(torch.maximum(torch.as_tensor(a), torch.as_tensor(b)))

    def where(self, on: Tensor, a: Any, b: Any) -> Any:
        if isinstance(a, Pointer):
            return a._moved(torch.where(on, a.address, b.address))
        return value(torch.where(on, a, b))

    def fma(self, a: Tensor, b: Tensor, c: Tensor) -> Value:
        return value((a.double() * b.double() + c.double()).float())

    def broadcast(self, a: Tensor, b: Tensor) -> Any:
        return torch.broadcast_tensors(a, b)

    def reshape(self, x: Tensor, shape: list[int]) -> Tensor:
        return x.reshape(shape)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., 0], x[..., 1]

    def sum(self, x: Tensor, axis: int) -> Tensor:
        return x.sum(axis)

    def max(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(axis)

    def inline_asm_elementwise(self, asm: Any, constraints: str, args: list, *_: Any) -> Value:
        (x,), asm = args, getattr(asm, "value", asm)
        if "ex2" in asm:
            return value(torch.exp2(x))
        if "rcp" in asm:
            return value(1 / x)
        return value((x.bfloat16() if "cvt.rn.bf16x2" in asm else x).float())

    def load(
        self, at: Pointer, mask: Any = None, other: Any = float("nan"), volatile: bool = False
    ) -> Value:
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

    def atomic_add(self, at: Pointer, x: Tensor, mask: Any, sem: str) -> Value:
        with self.lock:
            before = self.load(at, mask)
            self.store(at, before + x, mask)
        return before


def plain(fn: Any, gl: Language, scopes: dict[int, dict[str, Any]]) -> Callable[..., Any]:
    """The Python function of a kernel or a helper, with `gl` for its language, as all it calls."""
    seen = fn.__globals__
    if id(seen) not in scopes:
        scope = scopes[id(seen)] = {}
        for name, x in seen.items():
            if x is language or x is triton.language:
                x = gl
            elif isinstance(x, triton.language.constexpr):
                x = x.value
            elif isinstance(getattr(x, "fn", None), types.FunctionType):
                x = plain(x.fn, gl, scopes)
            scope[name] = x
        scope["PLAIN"] = False  # torch rounds rightly
    return types.FunctionType(fn.__code__, scopes[id(seen)], fn.__name__, fn.__defaults__)


def run(fn: JITFunction, grid: tuple[int, ...], arguments: tuple, named: dict[str, Any]) -> None:
    gl, tensors = Language(), [x for x in arguments if isinstance(x, Tensor)]
    kernel = plain(fn.fn, gl, {})
    named = {name: x for name, x in named.items() if name in fn.arg_names}
    failed = []

    def program(place: tuple[int, ...]) -> None:
        gl.program.place = place
        pointers = (
            Pointer(tensors, value(number << SHIFT), x.dtype) for number, x in enumerate(tensors)
        )
        made = [next(pointers) if isinstance(x, Tensor) else x for x in arguments]
        try:
            kernel(*made, **named)
        except BaseException as error:
            failed.append(error)

    places = itertools.product(*(range(n) for n in grid))
    threads = [threading.Thread(target=program, args=(p,), daemon=True) for p in places]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failed:
        time.sleep(0.001)
    if failed:
        raise failed[0]


@contextmanager
def launches() -> Iterator[None]:
    """Within, `kernel[grid](...)` runs here."""

    def getitem(fn: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **named: run(fn, grid, arguments, named)

    with patch.object(JITFunction, "__getitem__", getitem):
        yield
