"""Typed pytrees: frozen dataclasses of tensors, checked in eager mode, free when compiled."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar, dataclass_transform

import torch
from jaxtyping import jaxtyped
from torch import Tensor
from torch.utils import _pytree as pytree

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
CHECK = find_spec("beartype") is not None and os.environ.get("TR_TYPECHECK", "1") == "1"


class _Depth:
    """How many `unchecked` blocks surround the caller; `typed` checks at depth 0 only."""

    value = 0


def typed(fn: Callable[P, R]) -> Callable[P, R]:
    """Check jaxtyping annotations on each call.

    Off inside `unchecked` and while torch.compile traces, which sees the bare function.
    """
    if not CHECK:
        return fn
    from beartype import beartype

    checked = jaxtyped(fn, typechecker=beartype)

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or _Depth.value:
            return fn(*args, **kwargs)
        return checked(*args, **kwargs)

    return call


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Run without annotation checks: what `tr.jit` does once a function's shapes were checked."""
    _Depth.value += 1
    try:
        yield
    finally:
        _Depth.value -= 1


def static(**kwargs: Any) -> Any:
    """A field that is part of a pytree's structure: compared, never mapped over."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static,))
def tree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen pytree dataclass; fields declared with `static()` are structure."""
    cls = dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    meta = [f.name for f in fields if f.metadata.get("static")]
    data = [f.name for f in fields if f.name not in meta]

    def flatten(x: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(x, n) for n in data], tuple(getattr(x, n) for n in meta)

    def flatten_with_keys(x: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [(pytree.GetAttrKey(n), getattr(x, n)) for n in data], flatten(x)[1]

    def unflatten(leaves: Any, context: Any) -> Any:  # not __init__: leaves may be shapes or dtypes
        x = object.__new__(cls)
        for name, value in zip(data + meta, [*leaves, *context], strict=True):
            object.__setattr__(x, name, value)
        return x

    pytree.register_pytree_node(cls, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)
    cls.__init__ = typed(cls.__init__)
    return cls


def map_tensors(fn: Callable[[Tensor], Any], x: T) -> T:
    """Apply `fn` to every tensor of a pytree; other leaves (None, numbers) stay as they are."""
    return pytree.tree_map(lambda leaf: fn(leaf) if isinstance(leaf, Tensor) else leaf, x)


def tensors(x: Any) -> dict[str, Tensor]:
    """Every tensor of a pytree by its key path, such as `layers[0].norm.weight`."""
    leaves, _ = pytree.tree_flatten_with_path(x)
    return {
        pytree.keystr(path).lstrip("."): leaf for path, leaf in leaves if isinstance(leaf, Tensor)
    }


def replace_tensors(x: T, new: dict[str, Tensor]) -> T:
    """The same pytree with the tensors of `new` (keys as `tensors` gives them) put in."""
    leaves, spec = pytree.tree_flatten_with_path(x)
    values = [new.get(pytree.keystr(path).lstrip("."), leaf) for path, leaf in leaves]
    return pytree.tree_unflatten(values, spec)
