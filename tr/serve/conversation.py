"""A conversation as clients mean it, whatever the protocol; not yet what a template accepts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call in an assistant's message. `arguments`: an object, or its JSON text."""

    name: str
    arguments: Any = None
    id: str = ""


@dataclass(frozen=True)
class Message:
    """`role` as the client wrote it: system, developer, user, assistant, tool or function.

    `parts` of text follow each other without anything between. A tool result is a message of its
    own: `call_id` says whose, `is_error` that the call failed.
    """

    role: str
    parts: Sequence[str] = ()
    reasoning: str | None = None
    calls: Sequence[Call] = ()
    call_id: str = ""
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(frozen=True)
class Conversation:
    """`tools`: the client's own objects in OpenAI's function shape, keys in its order.

    `effort`: a word of the template, used where it thinks. `preserve_thinking`: earlier turns keep
    their thoughts. `continue_final`: the answer goes on with the last message, an assistant's.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    thinking: bool = True
    effort: str = "medium"
    preserve_thinking: bool = True
    continue_final: bool = False
