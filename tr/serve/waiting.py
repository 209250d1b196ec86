"""Jobs that wait for the device: first come, first served, in two lanes of one bounded queue."""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
AHEAD = 4  # side jobs in a row that may pass one that waits


class QueueFull(Exception):
    """As many wait as may."""


class Waiting(Generic[T]):
    """At most `limit` items. Those of the side lane go first, but AHEAD of them at a time."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"waiting: expected room for at least 1 job, got {limit}")
        self.limit = limit
        self._main: deque[T] = deque()
        self._side: deque[T] = deque()
        self._ahead = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._main) + len(self._side)

    def put(self, item: T, side: bool = False) -> None:
        with self._changed:
            if len(self) >= self.limit:
                raise QueueFull(f"{self.limit} requests wait already; try again later")
            (self._side if side else self._main).append(item)
            self._changed.notify()

    def take(self, timeout: float) -> T | None:
        """The next one; None where none came in `timeout` seconds, or `wake` was called."""
        with self._changed:
            if not len(self):
                self._changed.wait(timeout)
            passes = self._side and (not self._main or self._ahead < AHEAD)
            if passes:
                self._ahead += bool(self._main)
                return self._side.popleft()
            self._ahead = 0
            return self._main.popleft() if self._main else None

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def remove(self, item: T) -> bool:
        """Whether it still waited."""
        with self._changed:
            for lane in (self._main, self._side):
                if item in lane:
                    lane.remove(item)
                    return True
        return False

    def clear(self) -> list[T]:
        """Those that waited."""
        with self._changed:
            left = [*self._main, *self._side]
            self._main.clear()
            self._side.clear()
        return left
