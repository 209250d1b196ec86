"""How tensors leave a device while it goes on: through a few slabs of pinned memory.

Pinned memory takes a turn's time to get, and holds up what is launched meanwhile. So the newest
parcels stand in slabs, and an older one moves to ordinary memory when its slab is needed. All that
is done by one thread, in order; a caller pays for copies on the device alone.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
ALIGNED = 16  # bytes
AHEAD = 2  # parcels on their way at once: each has a copy on the device


@dataclass(frozen=True)
class Run:
    """Tensors of one dtype, which stand one behind the other from byte `start` on."""

    start: int
    dtype: torch.dtype
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]


class Parcel:
    """Tensors in one piece of memory, on the host once they arrived."""

    def __init__(self, views: Tensors) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.error: Exception | None = None  # in place of the memory
        self.runs: list[Run] = []
        self.nbytes = 0
        for dtype in dict.fromkeys(x.dtype for x in views.values()):
            of_one = {name: x for name, x in views.items() if x.dtype == dtype}
            shapes = tuple(x.shape for x in of_one.values())
            self.runs.append(Run(self.nbytes, dtype, tuple(of_one), shapes))
            size = sum(x.nbytes for x in of_one.values())
            self.nbytes += size + -size % ALIGNED

    def tensors(self) -> Tensors:
        """Views of the memory, by name."""
        if self.error is not None:
            raise self.error
        found: Tensors = {}
        for run in self.runs:
            sizes = [shape.numel() for shape in run.shapes]
            place = self.memory[run.start : run.start + sum(sizes) * run.dtype.itemsize]
            flat = place.view(run.dtype).split(sizes)
            found |= {n: x.view(s) for n, x, s in zip(run.names, flat, run.shapes, strict=True)}
        return found


class Slab:
    """Memory that a device can write to, and the parcel that stands in it while that lives."""

    def __init__(self, size: int, pinned: bool) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self.holder: Callable[[], Parcel | None] = lambda: None


class Porter:
    """Takes tensors off a device; its `slabs` slabs have `size` bytes each."""

    def __init__(self, device: torch.device, size: int = 0, slabs: int = 0) -> None:
        cuda = device.type == "cuda"
        self._aside = torch.cuda.Stream(device) if cuda else None
        self._slabs = [Slab(size, cuda) for _ in range(slabs)]  # the longest lent first
        self._worker = ThreadPoolExecutor(1)  # starts no thread before it is asked
        self._going: deque[Callable[[], None]] = deque(maxlen=AHEAD)

    @property
    def nbytes(self) -> int:
        """Of the slabs, whether parcels stand in them or not."""
        return sum(len(slab.memory) for slab in self._slabs)

    def small(self, views: Tensors) -> Callable[[], Tensors]:
        """Copies of `views` as they are now. What it gives waits for them on the host.

        Those are good until the next call here; the memory is kept as long as what was given.
        """
        if len(self._going) == AHEAD:
            self._going[0]()
        parcel = Parcel(views)
        flat = [torch.cat([views[n].reshape(-1) for n in run.names]) for run in parcel.runs]
        made = None
        if self._aside is not None:
            made = torch.cuda.current_stream(self._aside.device).record_event()
        arrived = self._start(lambda: self._carry(parcel, flat, made))
        self._going.append(arrived)

        def there() -> Tensors:
            arrived()
            self._going[-1]()  # a later one may be moving this one
            return parcel.tensors()

        return there

    def large(self, views: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Copies on the host, for which later work of the device waits."""
        return tuple(x.clone() if self._aside is None else _pinned(x) for x in views)

    def _start(self, job: Callable[[], None]) -> Callable[[], None]:
        """Have it done behind the jobs before it; gives what waits for that."""
        if self._aside is None:
            job()
            return lambda: None
        return self._worker.submit(job).result

    def _carry(self, parcel: Parcel, flat: list[Tensor], made: torch.cuda.Event | None) -> None:
        try:
            parcel.memory = self._carried(parcel, flat, made)
        except Exception as error:
            parcel.error = error

    def _carried(self, parcel: Parcel, flat: list[Tensor], made: torch.cuda.Event | None) -> Tensor:
        memory = self._memory(parcel)
        with torch.inference_mode(), torch.cuda.stream(self._aside) if made else nullcontext():
            if made is not None:
                made.wait()  # this stream waits, and with it for what last read the slab
            for run, x in zip(parcel.runs, flat, strict=True):
                place = memory[run.start : run.start + x.nbytes].view(run.dtype)
                place.copy_(x, non_blocking=True)
            if self._aside is not None:
                self._aside.synchronize()  # before `flat` may be another tensor's memory
        return memory

    def _memory(self, parcel: Parcel) -> Tensor:
        """Room for a parcel: a slab that is free, or the longest lent, whose parcel moves out."""
        if not self._slabs or parcel.nbytes > len(self._slabs[0].memory):
            return torch.empty(parcel.nbytes, dtype=torch.uint8)
        free = (slab for slab in self._slabs if slab.holder() is None)
        slab = next(free, self._slabs[0])
        if (old := slab.holder()) is not None:
            old.memory = old.memory.clone()
        self._slabs.remove(slab)
        self._slabs.append(slab)
        slab.holder = weakref.ref(parcel)
        return slab.memory[: parcel.nbytes]


def _pinned(x: Tensor) -> Tensor:
    return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)
