"""The only door to compilation: `jit` for a decoding step, `fused` for a training region.

`jit(fn, backend)` gives back a function of the same signature. Replay equals eager bit for bit:
that is a test, and it holds because operators are opaque to the compiler (kernels/define.py).
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tr.graph import Graphs, Written, need_cuda
from tr.tree import unchecked

P = ParamSpec("P")
R = TypeVar("R")

MODES = {  # torch.compile's; no entry: not compiled
    "inductor": "default",
    "max_autotune": "max-autotune-no-cudagraphs",
    "max_autotune_graph": "max-autotune-no-cudagraphs",
}
GRAPHS = ("cuda_graph", "max_autotune_graph")
BACKENDS = ("eager", "inductor", "max_autotune", *GRAPHS)
PLANNED = ("tensorrt",)
MAX_SHAPES = 64  # versions of one function: row counts, mostly


def jit(
    fn: Callable[P, R],
    backend: str = "eager",
    donate: str = "",
    inputs: Sequence[str] = (),
    device: torch.device | None = None,
    written: Written | None = None,
) -> Callable[P, R]:
    """`fn` through a backend; arguments that `fn` documents as donated stay donated.

    A version is made for each set of shapes of the arguments that are tensors and of values of the
    others (a step's row count); pytree arguments are expected to keep their shapes.

    eager: annotations are checked on the first call of a version, then no more.
    inductor: one whole-graph compilation per version, without Inductor's own graphs.
    max_autotune: the same, with the choices of kernels timed.
    cuda_graph: each version captured in one CUDA graph; max_autotune_graph: compiled, then captured
    (graph.py says what a capture asks of `fn`, of the argument named `donate` and of `inputs`). It
    has to put the donated pytree back: `written` gives views of all that a call may write in it;
    without one all of it is copied meanwhile.

    `device` is where calls will run. Raises ValueError for other names, and for graphs on a CPU.
    """
    if backend in PLANNED:
        raise ValueError(f"jit.backend: {backend} is not built yet; use {_one_of(BACKENDS)}")
    if backend not in BACKENDS:
        raise ValueError(f"jit.backend: expected {_one_of(BACKENDS)}, got {backend!r}")
    bare = unwrap(fn)

    def make(known: int) -> Callable[..., Any]:
        if known == MAX_SHAPES:
            raise ValueError(
                f"jit: {bare.__name__} was called with more than {MAX_SHAPES} sets of shapes; "
                "pad the argument whose size keeps changing"
            )
        if backend not in MODES:
            return bare
        return torch.compile(_fresh(bare), fullgraph=True, dynamic=False, mode=MODES[backend])

    if backend in GRAPHS:
        if device is not None:
            need_cuda(backend, device)
        names = list(inspect.signature(bare).parameters)
        graphs = Graphs(
            bare.__name__,
            backend,
            make,
            names.index(donate),
            [names.index(name) for name in inputs],
            written,
        )
        captured = functools.wraps(fn)(lambda *args: graphs(*args))
        captured.forget = graphs.forget  # type: ignore[attr-defined]
        return captured  # type: ignore[return-value]

    versions: dict[Any, Callable[..., Any]] = {}
    part = _kind if backend == "eager" else _constant

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        key = tuple(part(a) for a in args)
        version = versions.get(key)
        if version is None:
            version = make(len(versions))
            if backend == "eager":
                out = fn(*args, **kwargs)
                versions[key] = version  # not before: a call that a check stops is checked again
                return out
            versions[key] = version
        with unchecked():
            return version(*args, **kwargs)

    return call


def forget(fn: Callable[..., Any]) -> None:
    """Free what `jit` made `fn` hold for donated pytrees that no caller has any more: graphs keep
    their storage for the next one of the same shapes.
    """
    if hasattr(fn, "forget"):
        fn.forget()


def fused(fn: Callable[P, R]) -> Callable[P, R]:
    """A pure, differentiable region of tensors: compiled by Inductor on a GPU, plain on a CPU."""
    compiled = torch.compile(fn, dynamic=False)

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        on_gpu = any(isinstance(a, Tensor) and a.is_cuda for a in args)
        return (compiled if on_gpu else fn)(*args, **kwargs)

    return call


def unwrap(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function under `typed` and other wrappers."""
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    return fn


def _kind(x: Any) -> Hashable:
    """What an argument adds to the key of a version whose annotations were checked."""
    if isinstance(x, Tensor):
        return x.shape
    return x if isinstance(x, int) else type(x)


def _constant(x: Any) -> Hashable:
    """What an argument adds to the key of a compiled version: all but a pytree's contents."""
    if isinstance(x, Tensor):
        return x.shape
    return type(x) if _is_tree(x) or not isinstance(x, Hashable) else x


def _is_tree(x: Any) -> bool:
    return dataclasses.is_dataclass(x) and type(x) in pytree.SUPPORTED_NODES


def _one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of `fn` with its own code object, for which Dynamo counts recompilations."""
    copy = types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy
