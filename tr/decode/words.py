"""Tokens to text that ends before a stop string, wherever tokens and steps cut it.

The text ends with the first character that completes a stop string; of several that end there, the
longest counts. So what was written does not depend on how it came in pieces. Characters that may
still become part of a match are held back until that is decided.
"""

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """Ids to text as they come, such as `tr.checkpoint.detokenizer.Detokenizer`."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class Listener(Protocol):
    """What takes in a text's tokens and may end it, such as `Words`."""

    @property
    def stops(self) -> Sequence[str]:
        """What ends the text; empty: nothing does."""
        ...

    def push(self, token: int) -> bool:
        """Take in a token; whether the text ends with it."""
        ...


class Stops:
    """`read` text until a stop string is complete; `take` the text that is certain by then."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if "" in stops:
            raise ValueError("stop: expected strings of at least 1 character, got an empty one")
        self.stops = sorted(stops, key=len, reverse=True)
        self._starts = {s[:n] for s in stops for n in range(1, len(s))}
        self._longest = max(map(len, self._starts), default=0)
        self._held = ""
        self._ready = ""
        self.stop = ""  # the stop string that ended the text

    def read(self, text: str) -> bool:
        """Take in text; whether it completes a stop string. Nothing may follow that."""
        for character in text:
            self._held += character
            self.stop = next((s for s in self.stops if self._held.endswith(s)), "")
            if self.stop:
                self._ready += self._held.removesuffix(self.stop)
                return True
            start = max(0, len(self._held) - self._longest)
            while self._held[start:] not in self._starts and start < len(self._held):
                start += 1
            self._ready += self._held[:start]
            self._held = self._held[start:]
        return False

    def keep(self, text: str) -> None:
        """Take in text that ends nothing, whatever is in it."""
        self._ready += self._held + text
        self._held = ""

    def take(self) -> str:
        """The text that became certain since the last call."""
        ready, self._ready = self._ready, ""
        return ready

    def finish(self) -> str:
        """The rest of the text: nothing follows."""
        if not self.stop:
            self.keep("")
        self._held = ""
        return self.take()


class Words:
    """`push` ids until one completes a stop string; `take` the text that is certain by then.

    A stop string that one of the first `least` - 1 tokens completes is text like any other.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str] = (), least: int = 0) -> None:
        self._decoder, self._early, self._text = decoder, least - 1, Stops(stops)
        self.stops = self._text.stops

    @property
    def stop(self) -> str:
        """The stop string that ended the text."""
        return self._text.stop

    def push(self, token: int) -> bool:
        """Take in a token; whether it completes a stop string. Nothing may follow that."""
        text = self._decoder.push(token)
        if self._early > 0:
            self._early -= 1
            self._text.keep(text)
            return False
        return self._text.read(text)

    def take(self) -> str:
        """The text that became certain since the last call."""
        return self._text.take()

    def finish(self) -> str:
        """The rest of the text: no token follows."""
        if not self.stop:
            self._text.read(self._decoder.flush())
        return self._text.finish()
