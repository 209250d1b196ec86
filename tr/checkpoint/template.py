"""Chat templates: rendered in a sandbox, with control strings in the caller's text kept apart."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; rendering passes it on."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' templates expect it: no HTML escapes, key order kept."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def render(
    source: str, messages: Sequence[Message], tools: Sequence[Any] | None, **switches: Any
) -> str:
    """The conversation as text. Raises ValueError with what the template itself complains about."""
    if not messages:
        raise ValueError("chat: the conversation is empty; send at least one user message")
    try:
        return _compile(source).render(messages=messages, tools=tools, documents=None, **switches)
    except (TemplateError, TypeError) as error:
        raise ValueError(f"chat template: {error}") from error


class Guard:
    """Keeps control strings from arising in text that is not the template's.

    Every character that a control string may begin with becomes a word of letters and digits that
    the conversation does not contain; a template strips, joins and escapes around it as around any
    word. Whatever control string the rendered text then holds was begun by the template.
    """

    def __init__(self, control: Sequence[str], conversation: Any) -> None:
        longest_first = sorted(control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        first = "|".join(re.escape(c) for c in sorted({text[0] for text in control}))
        self._first = re.compile(first or r"(?!)")
        everything = json.dumps(conversation, ensure_ascii=False, default=str)
        number = 0
        while (mark := f"q{number}control") in everything:
            number += 1
        self._mark = mark
        self._hidden = re.compile(rf"{mark}(\d+)q")

    def hide(self, value: Any) -> Any:
        """The same structure with every string, dictionary keys included, made harmless."""
        if isinstance(value, str):
            return self._first.sub(lambda m: f"{self._mark}{ord(m[0])}q", value)
        if isinstance(value, Mapping):
            return {self.hide(k): self.hide(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(v) for v in value]
        return value

    def show(self, text: str) -> str:
        return self._hidden.sub(lambda m: chr(int(m[1])), text)

    def split(self, text: str) -> list[tuple[str, bool]]:
        """`text` cut at its control strings: (piece, whether it is one)."""
        pieces, at = [], 0
        for m in self._control.finditer(text):
            pieces += [(text[at : m.start()], False), (m[0], True)]
            at = m.end()
        return [p for p in [*pieces, (text[at:], False)] if p[0]]
