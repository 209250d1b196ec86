"""Progress bars for long work: a description, a bar, the rate and the time left, on stderr.

with progress() as bars:
    task = bars.add_task("essay", total=2048, unit="tokens")
    bars.advance(task, 3)
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")


class Rate(ProgressColumn):
    """Work done per second, in the task's own unit."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {task.fields.get('unit', '')}/s")


def progress(console: Console | None = None) -> Progress:
    """Bars to enter as a context; away from a terminal they are printed once, at the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
    )


def track(items: Sequence[T], description: str, unit: str = "steps") -> Iterator[T]:
    """Yield `items` under a bar of their own."""
    with progress() as bars:
        task = bars.add_task(description, total=len(items), unit=unit)
        for item in items:
            yield item
            bars.advance(task)
