"""One CUDA graph per version of a function: captured by hand, replayed on the donated storage.

What a function must keep to: it reads nothing on the host (no `int()`, `.item()`, `.tolist()`, no
boolean indexing), takes its arguments by position, and returns a tuple whose last item is the
donated pytree. Tensors that it returns there in storage of their own are copied back, inside the
graph. Plain tensors and the pytrees named as inputs are copied into buffers of the graph before a
replay; every other argument is a constant, read where it stood at the capture.
"""

import contextlib
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tr.tree import map_tensors, tensors, unchecked

Written = Callable[[Any], Sequence[Tensor]]  # a pytree -> views of all that a call may write in it

WARMUP = 2  # calls before a capture: the first compiles and tunes, the last shows host reads


@dataclass(eq=False)
class Version:
    """One captured call: its buffers for inputs by argument's place, and where outputs appear."""

    graph: torch.cuda.CUDAGraph
    buffers: dict[int, Any]
    held: dict[int, Any]  # the pytree whose values a buffer holds: such a tree is never written to
    outputs: tuple[Any, ...]

    def replay(self, args: Sequence[Any]) -> tuple[Any, ...]:
        for place, buffer in self.buffers.items():
            given = args[place]
            if isinstance(given, Tensor):
                buffer.copy_(given)
            elif given is not self.held[place]:
                for name, x in tensors(given).items():
                    tensors(buffer)[name].copy_(x)
                self.held[place] = given
        self.graph.replay()
        return self.outputs


@dataclass(eq=False)
class Home:
    """Storage of a donated pytree with the versions captured on it; `flat` is all its leaves."""

    flat: list[Any]
    spec: pytree.TreeSpec
    holder: Callable[[], Any] = lambda: None  # the tree that a caller holds, or None once it let go
    versions: dict[Any, Version] = field(default_factory=dict)

    @property
    def tree(self) -> Any:
        """A new pytree over the storage."""
        return pytree.tree_unflatten(self.flat, self.spec)

    @property
    def storage(self) -> list[Tensor]:
        return [x for x in self.flat if isinstance(x, Tensor)]

    def pairs(self, state: Any) -> list[tuple[Tensor, Tensor]]:
        """(own, other) tensors that stand in different memory; other pytrees raise ValueError."""
        flat, spec = pytree.tree_flatten(state)
        if spec != self.spec or _layout(flat) != _layout(self.flat):
            raise ValueError("the donated pytree came back with other shapes or another structure")
        both = zip(self.flat, flat, strict=True)
        return [(a, b) for a, b in both if isinstance(a, Tensor) and a.data_ptr() != b.data_ptr()]


class Graphs:
    """`make(known)` gives a function to capture; `donate` and `inputs` are places of arguments.

    A call that hands in the pytree of the last call costs nothing more than a replay. Another one
    is copied into known storage of the same shapes if no caller holds that any more, and gets
    storage and captures of its own otherwise. The outputs besides the donated pytree are static:
    valid until the next call.

    `written` is asked before a capture, which calls the function and puts back what it names.
    """

    def __init__(
        self,
        name: str,
        backend: str,
        make: Callable[[int], Callable[..., Any]],
        donate: int,
        inputs: Sequence[int],
        written: Written | None = None,
    ) -> None:
        self.name, self.backend, self.make = name, backend, make
        self.donate, self.inputs = donate, inputs
        self.written = written or (lambda state: list(tensors(state).values()))
        self.homes: list[Home] = []
        self.held: weakref.WeakKeyDictionary[Any, Home] = weakref.WeakKeyDictionary()
        self.specs: weakref.WeakKeyDictionary[Any, pytree.TreeSpec] = weakref.WeakKeyDictionary()
        self.pool: Any = None  # shared: versions run one at a time

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        state = args[self.donate]
        home = self.held.get(state)
        if home is None:
            home, state = self._settle(state)
        key = tuple(self._part(place, x) for place, x in enumerate(args))
        version = home.versions.get(key)
        if version is None:
            version = home.versions[key] = self._capture(home, args)
        return (*version.replay(args), state)

    def forget(self) -> None:
        """Free the storage of pytrees that no caller holds, and what was captured on it."""
        kept = [home for home in self.homes if home.holder() is not None]
        if len(kept) < len(self.homes):
            torch.cuda.synchronize()  # a graph that goes may still run
        self.homes = kept
        if not any(home.versions for home in self.homes):
            self.pool = None  # one whose graphs are all gone takes no other

    def _part(self, place: int, x: Any) -> Any:
        """What an argument adds to the key of a version."""
        if place == self.donate:
            return None
        if isinstance(x, Tensor):
            return x.shape, x.dtype
        if place not in self.inputs:
            return x
        if x not in self.specs:
            self.specs[x] = pytree.tree_structure(x)
        return self.specs[x]

    def _settle(self, state: Any) -> tuple[Home, Any]:
        """Where `state` lives from now on, and the pytree that stands for it."""
        flat, spec = pytree.tree_flatten(state)
        need_cuda(self.backend, next(x.device for x in flat if isinstance(x, Tensor)))
        free = [home for home in self.homes if home.holder() is None and home.spec == spec]
        fits = [home for home in free if _layout(home.flat) == _layout(flat)]
        if fits:
            home = min(fits, key=lambda home: len(home.pairs(state)))
            if pairs := home.pairs(state):
                for own, new in pairs:
                    own.copy_(new)
                state = home.tree
        else:
            home = Home(flat, spec)
            self.homes.append(home)
        home.holder = weakref.ref(state)
        self.held[state] = home
        return home, state

    def _capture(self, home: Home, args: Sequence[Any]) -> Version:
        """Warm up on a side stream, put the storage back as it was, record one call."""
        call = self.make(len(home.versions))
        given, buffers, held = list(args), {}, {}
        given[self.donate] = home.tree
        for place, x in enumerate(args):
            if place != self.donate and (isinstance(x, Tensor) or place in self.inputs):
                given[place] = buffers[place] = map_tensors(torch.clone, x)
                held[place] = None if isinstance(x, Tensor) else x
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        with unchecked(), self._explained():
            with preserved(self.written(given[self.donate])) as put_back:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for i in range(WARMUP):
                        with _no_host_reads() if i else contextlib.nullcontext():
                            call(*given)
                        put_back()
                torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            mode = "thread_local"  # other threads may wait for copies meanwhile
            with torch.cuda.graph(graph, self.pool, stream, mode):
                *outputs, state = call(*given)
                _write_back(home, state)
        return Version(graph, buffers, held, tuple(outputs))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not any(word in str(error) for word in ("synchronizing", "captur")):
                raise
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise ValueError(
                f"jit: {self.name} cannot be captured: it reads a value on the host, or copies from"
                f" it, at {at.filename}:{at.lineno}: {at.line}; keep it on the device, or use"
                " jit=eager or jit=inductor"
            ) from error


def need_cuda(backend: str, device: torch.device) -> None:
    if device.type != "cuda":
        raise ValueError(
            f"jit.backend: {backend} captures CUDA graphs, the tensors are on {device.type}; use"
            " jit=eager, jit=inductor or jit=max_autotune"
        )


def _layout(flat: Sequence[Any]) -> list[Any]:
    return [(x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else x for x in flat]


@contextlib.contextmanager
def preserved(views: Sequence[Tensor]) -> Iterator[Callable[[], None]]:
    """Gives what puts `views` back as they are now; an error in the block does so as well."""
    copies = _aside(views)

    def put_back() -> None:
        for x, copy in zip(views, copies, strict=True):
            x.copy_(copy)

    try:
        yield put_back
    except BaseException:
        torch.cuda.synchronize()
        put_back()
        raise


def _aside(views: Sequence[Tensor]) -> list[Tensor]:
    """Copies of `views`: on the card where half its free memory holds them, else on the host."""
    room = torch.cuda.mem_get_info()[0] // 2
    where = views[0].device if sum(x.nbytes for x in views) < room else "cpu"
    return [x.to(where, copy=True) for x in views]


def _write_back(home: Home, state: Any) -> None:
    """Put a returned pytree's fresh tensors into the storage; a source in it is copied first."""
    own = {x.untyped_storage().data_ptr() for x in home.storage}
    pairs = [
        (a, b.clone() if b.untyped_storage().data_ptr() in own else b) for a, b in home.pairs(state)
    ]
    for a, b in pairs:
        a.copy_(b)


@contextlib.contextmanager
def _no_host_reads() -> Iterator[None]:
    """Operations that wait for the device raise RuntimeError at the line that calls them."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
