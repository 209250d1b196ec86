"""The incremental parser of an answer: thought, text and tool calls, in whatever pieces it comes.

It reads text in which marker tokens are single characters (`tr.serve.tags`). Every decision depends
on the text alone, never on where a piece ended: what a longer text could turn into something else
is held back. So the events, adjacent pieces joined, are the same for every split.

- The thought ends at the first </think> token; further ones are dropped. A <tool_call> inside it is
  held back: a rehearsal if </think> follows, a call if the turn ends without one.
- A call opens where a declared function's tag follows <tool_call>, or begins a line without it, and
  a parameter or an end follows that. Anything else is text, tokens spelled out.
- White space before a call, and what separates calls, is no text. Text behind a call is.
- Values lose one line break at either end and nothing else. A value that its schema makes a string
  is told as it comes; others when they are complete. Once `</parameter>` stood where it may not
  have been the end, the rest waits until that is known. At the turn's end the last one counts.
- A parameter that is given twice is told twice: JSON's readers take the last.
- A call that is cut off is told as cut, so nothing can take it for one.
"""

import re
from collections.abc import Callable, Sequence

from tr.serve.events import CallArguments, CallClosed, CallCut, CallOpened, Event
from tr.serve.job import Tool
from tr.serve.prose import Prose, Thought
from tr.serve.schemas import TEXT, parameter, types
from tr.serve.tags import (
    CALL,
    END_CALL,
    END_FUNCTION,
    END_PARAMETER,
    END_THINK,
    SPELLED,
    THINK,
    Cursor,
    End,
    Undecided,
)
from tr.serve.values import dumps, typed

IN_TEXT = re.compile(rf"[{THINK}-{END_CALL}]|^<", re.MULTILINE)
IN_VALUE = re.compile(rf"[\n<{END_CALL}]")
AFTER_LAST = re.compile(rf"\s*(?:{END_FUNCTION}|\Z)")


class Parser:
    """`read` marked text, `finish` at its end; `tell` gets each event.

    `prose` judges stop strings; the answer is `over` when it finds one, or behind the first call
    unless `parallel`.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        thinking: bool,
        parallel: bool,
        call_id: Callable[[], str],
        tell: Callable[[Event], None],
        prose: Prose,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._parallel, self._call_id, self._tell = parallel, call_id, tell
        self._prose, self._thought = prose, Thought(tell)
        self._state = self._in_thought if thinking else self._in_text
        self._held, self._at = "", 0  # text that waits; from where on it was not looked at
        self._tool: Tool | None = None
        self._written: list[str] = []  # of the call, as it came
        self._pieces: list[str] = []  # of its arguments
        self._key = ""
        self._value: list[str] = []
        self._first = self._direct = self._loose = self._doubt = False
        self._unended = self.over = False
        self.calls = self.unparsed = 0

    @property
    def thinking(self) -> bool:
        return self._state == self._in_thought

    def read(self, text: str, final: bool = False) -> None:
        self._held += text
        while not self.over and self._state(final):
            pass

    def finish(self, cut: bool) -> None:
        """`cut`: the answer was ended from outside, not by itself."""
        if self.over:
            return
        if not cut:
            self.read("", final=True)
        rest, self._held = self._held, ""
        if self.thinking:
            self._thought.write(rest.translate(SPELLED))
        elif self._tool is not None:
            self._tell(CallCut(self.calls, "".join([*self._written, rest]).translate(SPELLED)))
            self._tool = None
        else:
            self._prose.write(rest.translate(SPELLED))
        self._prose.finish()

    def _take(self, n: int) -> str:
        """The first `n` characters of what is held, which are decided."""
        taken, self._held, self._at = self._held[:n], self._held[n:], max(0, self._at - n)
        if self._tool is not None:
            self._written.append(taken)
        return taken.translate(SPELLED)

    def _cursor(self, at: int, final: bool) -> Cursor:
        return Cursor(self._held, at, self._tools, final)

    # Each state reads on and returns whether the next one, or the same, has more to read.

    def _in_thought(self, final: bool) -> bool:
        if not self._thought.began and (again := self._held.lstrip()).startswith(THINK):
            self._take(len(self._held) - len(again) + 1)
        end = self._held.find(END_THINK, self._at)
        if end >= 0:
            self._thought.write(self._take(end))
            self._take(1)
            return self._end_thought()
        call = self._held.find(CALL)
        while call >= 0 and not self._may_open(call, final):
            call = self._held.find(CALL, call + 1)
        self._thought.write(self._take(len(self._held) if call < 0 else call))
        self._at = len(self._held)
        return self._end_thought() if final and call >= 0 else False

    def _may_open(self, at: int, final: bool) -> bool:
        try:
            return bool(self._tools) and self._cursor(at, final).opens()
        except Undecided:
            return True

    def _end_thought(self) -> bool:
        self._at, self._state = 0, self._in_text
        self._prose.begin(skip="\n")
        return True

    def _in_text(self, final: bool) -> bool:
        self._take(self._prose.skipped(self._held))
        while match := IN_TEXT.search(self._held, self._at):
            at, marker = match.start(), match[0]
            if at == 0 and marker == "<" and not self._prose.at_line_start:
                self._at = 1
            elif marker == END_THINK:
                self._write(at)
                self._take(1)
                if self._prose.is_blank:
                    self._prose.begin(skip="\n")
                return not self.over
            elif marker == THINK and self._prose.is_blank and not self._held[:at].strip():
                self._take(at + 1)
                self._state = self._in_thought
                return True
            elif marker == END_CALL and self._ends_call(at):
                self._write(at)
                self._take(1)
                self._prose.begin(skip=None)
                self._unended, self.over = False, self.over or not self._parallel
                return not self.over
            elif self._tools and marker in (CALL, "<"):
                try:
                    cursor = self._cursor(at, final)
                    name = cursor.function()
                except Undecided:
                    self._write(at)
                    self._at = 0
                    return False
                if name is not None:
                    return self._open(at, cursor.at, name)
                self.unparsed += marker == CALL
                self._at = at + 1
            else:
                self._at = at + 1
        self._write(len(self._held))
        return False

    def _ends_call(self, at: int) -> bool:
        """Whether a </tool_call> is the last call's own, or a second one right behind it."""
        return self._unended or (self.calls > 0 and self._prose.is_fresh and at == 0)

    def _write(self, n: int) -> None:
        self.over = self._prose.write(self._take(n)) or self.over

    def _open(self, at: int, end: int, name: str) -> bool:
        self._write(at)
        if self.over:
            return False
        if self.calls and not self._parallel:
            self.over = True
            return False
        self._prose.end_before_call()
        self._unended = False
        self._tool = self._tools[name]
        self._written, self._pieces = [], []
        self._take(end - at)
        self._tell(CallOpened(self.calls, self._call_id(), name))
        self._state = self._in_call
        return True

    def _in_call(self, final: bool) -> bool:
        """Between a call's tags. What may stand here was seen to before."""
        cursor = self._cursor(0, final)
        try:
            cursor.space()
            if (key := cursor.parameter()) is None:
                cursor.word(END_FUNCTION)
        except Undecided:
            return False
        self._take(cursor.at)
        if key is None:
            self._close()
        else:
            self._begin_value(key)
        return True

    def _close(self) -> None:
        self._argue("}" if self._pieces else "{}")
        self._tell(CallClosed(self.calls, "".join(self._pieces)))
        self.calls += 1
        self._tool, self._unended = None, True
        self._state = self._in_text
        self._prose.begin(skip=None)

    def _argue(self, json: str) -> None:
        self._pieces.append(json)
        self._tell(CallArguments(self.calls, json))

    def _begin_value(self, key: str) -> None:
        assert self._tool is not None
        self._key, self._value = key, []
        self._direct = types(parameter(self._tool, key), self._tool.parameters) == TEXT
        self._loose = self._doubt = False
        self._first = True
        start = (", " if self._pieces else "{") + dumps(key) + ": "
        self._argue(start + '"' if self._direct else start)
        self._state = self._in_value

    def _in_value(self, final: bool) -> bool:
        if self._first and self._held:
            self._loose = self._held[0] != "\n"
        while match := IN_VALUE.search(self._held, self._at):
            at = match.start()
            cursor = self._cursor(at, final)
            try:
                end = cursor.end(self._loose)
            except Undecided:
                self._at = at
                if not self._doubt:
                    self._say(at)
                return False
            if end is End.UNCLOSED:
                return self._end_at_last(at, cursor.at)
            if end in (End.PARAMETER, End.FUNCTION, End.CALL):
                return self._end_value(at, cursor.at, closed=end is not End.PARAMETER)
            if end is End.DOUBT and not self._doubt:
                self._say(at)
                self._doubt, at = True, 0
            self._at = at + 1
        if final:
            return self._end_at_last(len(self._held), len(self._held))
        if not self._doubt:
            self._say(len(self._held))
        self._at = len(self._held)
        return False

    def _say(self, n: int) -> None:
        """The next `n` characters belong to the value."""
        text = self._take(n)
        if text and self._first:
            self._first = False
            text = text.removeprefix("\n")
        if text and self._direct:
            self._argue(dumps(text)[1:-1])
        elif text:
            self._value.append(text)

    def _end_value(self, n: int, end: int, closed: bool) -> bool:
        """The value ends behind `n` more characters; what ends it, before `end`."""
        assert self._tool is not None
        self._say(n)
        self._take(end - n)
        self._at = 0
        if self._direct:
            self._argue('"')
        else:
            schema, root = parameter(self._tool, self._key), self._tool.parameters
            self._argue(dumps(typed("".join(self._value), schema, root)))
        self._state = self._in_call
        if closed:
            self._close()
        return True

    def _end_at_last(self, n: int, end: int) -> bool:
        """The call ends at `n` without an end of the value: then it is the last `</parameter>`, if
        nothing but the function's end follows it.
        """
        at = self._held.rfind(END_PARAMETER, 0, n)
        last = AFTER_LAST.match(self._held, at + len(END_PARAMETER), n) if at >= 0 else None
        if last:
            n, end = at, last.end()
        lined = (last or n == end) and self._held[:n].endswith("\n")
        if lined and (n > 1 or not self._first):  # else it is the value's first
            n -= 1
        return self._end_value(n, end, closed=True)
