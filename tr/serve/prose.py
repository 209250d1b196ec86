"""What is shown of an answer besides calls: its text up to a stop string, and its thought."""

from collections.abc import Callable

from tr.decode.words import Stops
from tr.serve.events import Reasoning, Text


class Prose:
    """Text in pieces, without the white space that belongs to the markup around it.

    White space at the end waits: before a call it is none of the text. Stop strings are looked for
    in text alone, each stretch between calls by itself, while `armed`.
    """

    def __init__(self, tell: Callable[[Text], None], stops: Stops) -> None:
        self._tell, self._stops = tell, stops
        self._skip: str | None = ""  # leading characters that are left out; None: white space
        self._white = ""
        self.armed = True
        self.is_fresh = True  # nothing was written since the beginning, the thought or a call
        self.is_blank = True  # nothing but white space was, and no call
        self.at_line_start = True

    def begin(self, skip: str | None) -> None:
        """A thought or a call ended; `skip` is what separates the text from it."""
        self._skip = skip
        self.is_fresh = self.at_line_start = True

    def skipped(self, text: str) -> int:
        """How many characters at the beginning of `text` are none of it."""
        return len(text) - len(text.lstrip(self._skip)) if self.is_fresh else 0

    def write(self, text: str) -> bool:
        """Take in text; whether it completes a stop string."""
        if not text:
            return False
        self.is_fresh, self.at_line_start = False, text.endswith("\n")
        self.is_blank = self.is_blank and not text.strip()
        over = False
        if self.armed:
            over = self._stops.read(text)
        else:
            self._stops.keep(text)
        self._show(self._stops.take(), end=over)
        return over

    def end_before_call(self) -> None:
        self._show(self._stops.finish(), end=False)
        self._white, self.is_blank = "", False

    def finish(self) -> None:
        self._show(self._stops.finish(), end=True)

    def _show(self, text: str, end: bool) -> None:
        text = self._white + text
        shown = text if end else text.rstrip()
        self._white = text[len(shown) :]
        if shown:
            self._tell(Text(shown))


class Thought:
    """A thought in pieces, without white space at either end, as templates write it."""

    def __init__(self, tell: Callable[[Reasoning], None]) -> None:
        self._tell, self._white = tell, ""
        self.began = False

    def write(self, text: str) -> None:
        text = self._white + text
        shown = text.rstrip()
        self._white = text[len(shown) :]
        if not self.began:
            shown = shown.lstrip()
        if shown:
            self.began = True
            self._tell(Reasoning(shown))
