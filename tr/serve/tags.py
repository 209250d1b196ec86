"""The tags of a tool call in Qwen's form, matched in text that may not be complete yet.

    <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>

The tokens <tool_call>, </tool_call>, <think> and </think> stand in the text as one character each,
halves of surrogate pairs, which text of tokens never holds; the same words spelled by other tokens
are words. `<function=` and `<parameter=` are words in either case.
"""

import re
from collections.abc import Collection
from enum import Enum

from tr.serve.schemas import KEY

THINK, END_THINK, CALL, END_CALL = "\ud800", "\ud801", "\ud802", "\ud803"
MARKERS = {"<think>": THINK, "</think>": END_THINK, "<tool_call>": CALL, "</tool_call>": END_CALL}
SPELLED = str.maketrans({marker: word for word, marker in MARKERS.items()})
END_PARAMETER, END_FUNCTION = "</parameter>", "</function>"
SPACE = re.compile(r"\s{0,16}")  # between two tags at most; bounds how far one looks ahead
NAMED = re.compile(rf"[^>\n{THINK}-{END_CALL}]{{0,{KEY + 1}}}")


class Undecided(Exception):
    """What follows decides."""


class End(Enum):
    """What ends a value: more parameters, the function, the call, the call without an end of the
    value, or perhaps nothing.
    """

    PARAMETER = "parameter"
    FUNCTION = "function"
    CALL = "call"
    UNCLOSED = "unclosed"
    DOUBT = "doubt"


class Cursor:
    """Reads `text` from `at` on. Raises Undecided at its end, unless that is `final`.

    `names`: of the functions that may be called.
    """

    def __init__(self, text: str, at: int, names: Collection[str], final: bool) -> None:
        self.text, self.at, self.names, self.final = text, at, names, final

    def word(self, literal: str) -> bool:
        """Pass over `literal` if it stands here."""
        found = self.text[self.at : self.at + len(literal)]
        if found == literal:
            self.at += len(literal)
            return True
        if literal.startswith(found) and not self.final:
            raise Undecided
        return False

    def space(self) -> None:
        match = SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        if self.at == len(self.text) and not self.final:
            raise Undecided

    def ended(self) -> bool:
        return self.final and self.at == len(self.text)

    def marker(self) -> bool:
        """Whether a call's first or last token is next."""
        return self.ahead(CALL) or self.ahead(END_CALL)

    def ahead(self, literal: str) -> bool:
        start = self.at
        found = self.word(literal)
        self.at = start
        return found

    def named(self, prefix: str, names: Collection[str] | None = None) -> str | None:
        """Pass over `prefix` NAME `>`, NAME being one of `names` if they are given."""
        start = self.at
        if self.word(prefix):
            match = NAMED.match(self.text, self.at)
            assert match is not None
            name, end = match[0], match.end()
            if names is None:
                fits, may = 0 < len(name) <= KEY, len(name) <= KEY
            else:
                fits, may = name in names, any(n.startswith(name) for n in names)
            if end == len(self.text) and may and not self.final:
                raise Undecided
            if fits and self.text[end : end + 1] == ">":
                self.at = end + 1
                return name
        self.at = start
        return None

    def parameter(self) -> str | None:
        return self.named("<parameter=")

    def function(self) -> str | None:
        """The name of the call that opens here. What follows must be of a call as well.

        `<parameter=NAME>` in the place of `<function=NAME>` is a slip that Qwen3.8 makes.
        """
        start, marked = self.at, self.word(CALL)
        if marked:
            self.space()
        name = self.named("<function=", self.names)
        if name is None and marked:
            name = self.named("<parameter=", self.names)
        if name is not None:
            end = self.at
            self.space()
            if self.goes_on():
                self.at = end
                return name
        self.at = start
        return None

    def goes_on(self) -> bool:
        start = self.at
        if self.ended() or self.marker() or self.ahead(END_FUNCTION):
            return True
        found = self.parameter() is not None
        self.at = start
        return found

    def opens(self) -> bool:
        start = self.at
        found = self.function() is not None
        self.at = start
        return found

    def end(self, loose: bool) -> End | None:
        """What of a value's end stands here, passed over as far as it belongs to the value.

        A line `</parameter>` before another parameter, or `</parameter>` before the function's
        end, if that is the call's end too: text inside a value may have any other tag. `loose`, for
        a value that begins in the line of its tag: line breaks may be missing. Where `</parameter>`
        stands otherwise, only what comes later tells.
        """
        start = self.at
        lined = self.word("\n" + END_PARAMETER)
        if lined or self.word(END_PARAMETER):
            after = self.at
            found = self._behind_parameter(after, lined or loose, loose)
            self.at = self.at if found else after
            return found or End.DOUBT
        self.at = start
        if self.word("\n" + END_FUNCTION):
            self.space()
            if self.ended():
                return End.UNCLOSED
        else:
            self.word("\n")
        end = self.at
        if self.word(END_CALL):
            self.space()
            if self.ended() or self.ahead(CALL):
                self.at = end
                return End.UNCLOSED
        return None

    def _behind_parameter(self, after: int, lined: bool, loose: bool) -> End | None:
        if self.word("\n") or loose:
            tag = self.at
            if lined and self.parameter() is not None:
                self.at = tag
                return End.PARAMETER
            if self.word(END_FUNCTION):
                end = self.at
                self.space()
                if self.ended() or self.marker() or self.opens():
                    self.at = end
                    return End.FUNCTION
                return None
        self.at = after
        self.space()
        return End.CALL if self.ended() or self.marker() else None
