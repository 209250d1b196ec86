"""Progress as bars on a terminal: a name, a bar, what is done, the rate and the time left.

Away from a terminal a bar is printed once, at its end.
"""

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from tr.progress import Stage, Steady

NAME, BAR = 20, 20  # columns of a stage's name, at least, and of its bar


class Bars:
    """Bars of the stages that run; the outermost stay on the screen, the others go at their end."""

    def __init__(self) -> None:
        self.shown: Progress | None = None
        self.tasks: dict[Stage, TaskID] = {}
        self.outer: set[Stage] = set()

    def begin(self, stage: Stage) -> None:
        if self.shown is None:
            self.shown = bars()
            self.shown.start()
            self.outer.add(stage)
        self.tasks[stage] = self.shown.add_task(stage.name, total=stage.total, unit=stage.unit)

    def advance(self, stage: Stage) -> None:
        assert self.shown is not None
        self.shown.update(self.tasks[stage], completed=stage.done, description=stage.name)

    def end(self, stage: Stage, whole: bool) -> None:
        assert self.shown is not None
        self.advance(stage)
        task = self.tasks.pop(stage)
        if stage in self.outer:
            self.shown.stop_task(task)
        else:
            self.shown.remove_task(task)
        self.outer.discard(stage)
        if not self.tasks:
            self.shown.stop()
            self.shown = None


class Done(ProgressColumn):
    """Units done, of how many."""

    def render(self, task: Task) -> Text:
        total = "?" if task.total is None else amount(task.total, task.fields["unit"])
        return Text(f"{amount(task.completed, task.fields['unit'])}/{total}")


class Rate(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        speed, unit = task.finished_speed or task.speed, task.fields["unit"]
        if speed is None:
            return Text("")
        return Text(f"{decimal(int(speed))}/s" if unit == "bytes" else f"{speed:,.1f} {unit}/s")


def amount(value: float, unit: str) -> str:
    return decimal(int(value)) if unit == "bytes" else f"{value:,.0f}"


def bars() -> Progress:
    steady = Steady()
    return Progress(
        TextColumn("{task.description}", table_column=Column(min_width=NAME), markup=False),
        BarColumn(BAR),
        Done(),
        Rate(),
        TimeRemainingColumn(),
        console=Console(file=steady),  # type: ignore[arg-type]
        redirect_stdout=False,  # what is printed there is no progress
        redirect_stderr=False,
    )
