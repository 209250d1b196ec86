"""What an answer is made of, in the order in which it was written; every protocol words it anew.

The pieces of one answer do not depend on how its tokens came in steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reasoning:
    """A piece of thinking, without the template's own line breaks."""

    text: str


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class CallOpened:
    """Tool call `index` (0, 1, ...) of the answer begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """JSON text; the pieces of one call make one object. What was sent is never revised."""

    index: int
    json: str


@dataclass(frozen=True)
class CallClosed:
    """The call is complete: `arguments` is the text of all its pieces."""

    index: int
    arguments: str


@dataclass(frozen=True)
class CallCut:
    """The answer ended inside the call: it must not be run. `raw` is what was written of it."""

    index: int
    raw: str


Event = Reasoning | Text | CallOpened | CallArguments | CallClosed | CallCut


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with adjacent pieces of one kind joined."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Reasoning) and isinstance(last, Reasoning):
            found[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, Text) and isinstance(last, Text):
            found[-1] = Text(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(last.index, last.json + event.json)
        else:
            found.append(event)
    return found
