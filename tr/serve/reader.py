"""An answer's ids, one by one, to the events that every protocol words anew."""

import secrets
from collections.abc import Callable, Sequence

from tr.checkpoint.tokenizer import Tokenizer
from tr.decode.words import Stops
from tr.serve.events import Event, merged
from tr.serve.job import Tool
from tr.serve.markup import Parser
from tr.serve.prose import Prose
from tr.serve.tags import MARKERS

END_OF_CALL = "</tool_call>"


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class Reader:
    """`push` ids until one ends the answer; `take` the events that are certain by then.

    It listens like `tr.decode.words.Words`. Stop strings are looked for in text: not in thoughts,
    not in calls, nor across them. A stop string that one of the first `least` - 1 tokens completes
    is text like any other. Unless `parallel`, the answer ends with its first call; `stop` is "".
    `raw`: no markup is read, all is text. No id is refused: one without a token gives U+FFFD.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Tool] = (),
        thinking: bool = False,
        stops: Sequence[str] = (),
        parallel: bool = True,
        raw: bool = False,
        least: int = 0,
        call_id: Callable[[], str] = new_call_id,
    ) -> None:
        tools, thinking = ((), False) if raw else (tools, thinking)
        self._events: list[Event] = []
        self._stops = Stops(stops)
        self._prose = Prose(self._events.append, self._stops)
        self._parser = Parser(tools, thinking, parallel, call_id, self._events.append, self._prose)
        self._text = tokenizer.detokenizer(special=False)
        self._known = tokenizer.pieces
        control = {} if raw else tokenizer.control
        self._markers = {control[word]: m for word, m in MARKERS.items() if word in control}
        self._least, self._count = least, 0
        self.stops = [*self._stops.stops] + ([END_OF_CALL] if tools and not parallel else [])
        self.reasoning_tokens = 0

    @property
    def stop(self) -> str:
        """The stop string that ended the text."""
        return self._stops.stop

    @property
    def thinking(self) -> bool:
        """Whether the next id belongs to the thought."""
        return self._parser.thinking

    @property
    def calls(self) -> int:
        """Calls that are complete."""
        return self._parser.calls

    @property
    def unparsed(self) -> int:
        """<tool_call> tokens that began no call and are text."""
        return self._parser.unparsed

    def push(self, token: int) -> bool:
        """Take in a token; whether the answer ends with it. Nothing may follow that."""
        self._count += 1
        self.reasoning_tokens += self.thinking
        self._prose.armed = self._count >= self._least
        if (marker := self._markers.get(token)) is not None:
            text = self._text.flush() + marker
        elif 0 <= token < len(self._known) and self._known[token] is not None:
            text = self._text.push(token)
        else:
            text = self._text.flush() + "\ufffd"
        self._parser.read(text)
        return self._parser.over

    def take(self) -> list[Event]:
        """What became certain since the last call."""
        found = merged(self._events)
        self._events.clear()
        return found

    def finish(self, cut: bool) -> list[Event]:
        """The rest. `cut`: something else than the answer itself ended it, such as its length."""
        self._parser.read(self._text.flush())
        self._parser.finish(cut)
        return self.take()
