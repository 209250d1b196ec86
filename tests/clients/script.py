"""A script in place of the model's choice of token ids: all else of an answer is the server's own.

The task takes three answers: a call that reads a file, a call that writes what the file says into
another, and a sentence that says it, which is said again when it is asked for later. What is to be
written is taken from the rendered prompt.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Int32
from torch import Tensor

from tr.checkpoint.tokenizer import Tokenizer
from tr.decode.rule import mask_of
from tr.serve.job import Request

TASK = "Copy the word of source.txt into copy.txt."
AGAIN = "Say it once more."
WORD = re.compile(r"word-[0-9a-f]{12}")
RESULT = "<tool_response>"
TITLE = "Copy a word"

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Hands:
    """A client's tools: the calls that read a file and that write a text into one."""

    read: Callable[[Path], Call]
    write: Callable[[Path, str], Call]


class Forced:
    """A `tr.decode.rule.Rule` that lets one text through: `ids` of `count` that there are."""

    done = False  # the last id is an end token

    def __init__(self, ids: Sequence[int], count: int) -> None:
        self._ids, self._count, self._at = ids, count, 0

    def push(self, token: int) -> bool:
        allowed = token == self._ids[self._at]
        self._at += allowed
        return allowed

    def mask(self) -> Int32[Tensor, " words"]:
        return mask_of(self._ids[self._at : self._at + 1], self._count)


class Script:
    """The task in `folder`; an answer depends on its prompt alone."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, hands: Hands) -> None:
        self.tokenizer, self.folder, self.hands = tokenizer, folder, hands

    def rule(self, request: Request) -> Forced:
        ids = self.tokenizer.encode(self.answer(request), special=True)
        return Forced([*ids, self.tokenizer.eos[0]], self.tokenizer.count)

    def answer(self, request: Request) -> str:
        thought = "The task is clear.\n</think>\n\n" if request.thinking else ""
        return thought + self.said(request)

    def said(self, request: Request) -> str:
        if request.constraint is not None:
            return json.dumps({"title": TITLE})
        _, found, after = self.tokenizer.decode(request.ids).rpartition(TASK)
        if not (request.tools and found):
            return TITLE
        results = after.count(RESULT)
        if results == 0:
            return "I read it." + written(*self.hands.read(self.folder / "source.txt"))
        word = WORD.search(after)
        if word is None:
            return f"No word came back: {after[-400:]}"
        if results == 1:
            return written(*self.hands.write(self.folder / "copy.txt", word[0]))
        return f"Both files say {word[0]} now."


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    values = {key: v if isinstance(v, str) else json.dumps(v) for key, v in arguments.items()}
    inner = "".join(f"<parameter={key}>\n{v}\n</parameter>\n" for key, v in values.items())
    return f"\n\n<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
