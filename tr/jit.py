"""The only door to compilation: `jit` for a decoding step, `fused` for a training region.

`jit(fn, backend)` gives back a function of the same signature. Replay equals eager bit for bit:
that is a test, and it holds because operators are opaque to the compiler (kernels/define.py).
"""

import functools
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tr.tree import unchecked

P = ParamSpec("P")
R = TypeVar("R")

BACKENDS = ("eager", "inductor")
PLANNED = ("max_autotune", "cuda_graph", "max_autotune_graph", "tensorrt")
MAX_SHAPES = 64  # compiled versions of one function: row counts, mostly


def jit(fn: Callable[P, R], backend: str = "eager") -> Callable[P, R]:
    """`fn` through a backend; arguments that `fn` documents as donated stay donated.

    A version is made for each set of shapes of the arguments that are plain tensors (a step's row
    count); pytree arguments are expected to keep theirs.
    eager: annotations are checked on the first call of a version, then no more.
    inductor: one whole-graph compilation per version. Raises ValueError for other names.
    """
    if backend in PLANNED:
        raise ValueError(f"jit.backend: {backend} is not built yet; use {' or '.join(BACKENDS)}")
    if backend not in BACKENDS:
        raise ValueError(f"jit.backend: expected {' or '.join(BACKENDS)}, got {backend!r}")
    bare = unwrap(fn)
    versions: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        key = tuple(a.shape for a in args if isinstance(a, Tensor))
        version = versions.get(key)
        if version is None:
            if len(versions) == MAX_SHAPES:
                raise ValueError(
                    f"jit: {bare.__name__} was called with more than {MAX_SHAPES} sets of shapes; "
                    "pad the argument whose size keeps changing"
                )
            if backend == "eager":
                out = fn(*args, **kwargs)
                versions[key] = bare  # not before: a call that the check stops is checked again
                return out
            version = versions[key] = torch.compile(_fresh(bare), fullgraph=True, dynamic=False)
        with unchecked():
            return version(*args, **kwargs)

    return call


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


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of `fn` with its own code object, for which Dynamo counts recompilations."""
    copy = types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy
