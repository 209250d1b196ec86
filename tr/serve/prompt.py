"""A conversation to the ids that the model reads, alike from turn to turn as far as can be."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.conversation import Conversation, Message
from tr.serve.events import CallCut
from tr.serve.job import Tool
from tr.serve.ledger import Form, Ledger, Prefix, form_of
from tr.serve.normalise import RULES, PromptError, Rules, normalise
from tr.serve.reader import Reader
from tr.serve.segments import Segments

OPEN, CLOSE = "<|im_start|>", "<|im_end|>"  # of a turn
ANSWERS = "assistant\n"  # begins the turns of answers
CACHE_CHARS, LEDGER_IDS = 2**25, 2**23

Piece = tuple[str, bool]  # text, and whether it is a control token

__all__ = ["PromptError", "Prompter", "Rendered", "Rules"]


@dataclass(frozen=True, eq=False)
class Rendered:
    """A prompt. `marks`: lengths of its beginnings up to the end of each turn.

    `thinking`: the answer begins inside a thought. `spliced`: turns whose ids came from the ledger.
    `fresh`: the answer has a turn of its own, which begins at the last mark. `tools`: what it may
    call.
    """

    ids: Sequence[int]
    marks: Sequence[int]
    thinking: bool
    spliced: int = 0
    fresh: bool = True
    tools: Sequence[Tool] = ()


class Prompter:
    """Renders with the checkpoint's own template; knows the answers it was told of.

    `reinsert`: thoughts that a client leaves out of its history are put back. For one thread.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        rules: Rules = RULES,
        reinsert: bool = True,
        cache_chars: int = CACHE_CHARS,
        ledger_ids: int = LEDGER_IDS,
    ) -> None:
        self._tokenizer, self._rules, self._reinsert = tokenizer, rules, reinsert
        self._segments = Segments(tokenizer.encode, cache_chars)
        self._ledger = Ledger(ledger_ids)

    @property
    def encoded(self) -> int:
        """Characters that were tokenised so far."""
        return self._segments.encoded

    def count(self, conversation: Conversation) -> int:
        """Tokens of the prompt, the opening of the answer included."""
        return len(self.render(conversation).ids)

    def render(self, conversation: Conversation) -> Rendered:
        """Raises PromptError for what the rules or the template refuse."""
        try:
            return self._render(normalise(conversation, self._rules))
        except PromptError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise PromptError("messages", str(error)) from error
        except RecursionError as error:
            raise PromptError("messages", "nested too deeply") from error

    def finished(self, rendered: Rendered, ids: Sequence[int]) -> None:
        """Remember an answer by its ids, an end token included. What is no whole turn is not kept:
        an open thought, a cut call.
        """
        ended = bool(ids) and ids[-1] in self._tokenizer.eos
        raw = ids[: len(ids) - ended]
        if not raw or not rendered.fresh or self._tokenizer.control.get(OPEN) in raw:
            return
        reader = Reader(self._tokenizer, rendered.tools, rendered.thinking)
        for token in raw:
            reader.push(token)
        events = reader.finish(cut=not ended)
        if reader.thinking or any(isinstance(event, CallCut) for event in events):
            return
        begin = rendered.marks[-1]
        turn = [*rendered.ids[begin:], *raw]
        self._ledger.add(Prefix(rendered.ids[:begin]).digest(), form_of(events), turn)

    def _render(self, conversation: Conversation) -> Rendered:
        messages = conversation.messages
        fresh = messages[-1].role != "assistant"
        if not fresh:
            _check_final(conversation)
        turns = _turns(self._pieces(conversation, fresh))
        if not fresh:
            turns[-1] = turns[-1][: _end(turns[-1])]
        answers = [m for m in messages if m.role == "assistant"]
        places = [n for n, turn in enumerate(turns) if _is_answer(turn)]
        open_turns = len(turns) - 1  # the last one is open: its ids are no finished turn's
        spliceable = conversation.preserve_thinking and len(places) == len(answers) + fresh
        told = dict(zip(places, answers, strict=False)) if spliceable else {}
        ids, marks, spliced, prefix = array("i"), [], 0, Prefix()
        for n, turn in enumerate(turns):
            if ids:
                marks.append(len(ids))
            known = None
            if n in told and n < open_turns:
                known = self._ledger.find(prefix.digest(), _form(told[n]), self._reinsert)
            if known is None:
                own = self._ids(turn)
            else:
                spliced += 1
                own = known + self._ids(turn[_end(turn) :])
            ids += own
            prefix.add(own)
        controls = [piece for piece, control in turns[-1] if control]
        thinking = "<think>" in controls and "</think>" not in controls
        tools = _tools(conversation.tools)
        return Rendered(ids.tolist(), marks, thinking, spliced, fresh and bool(marks), tools)

    def _pieces(self, conversation: Conversation, generate: bool) -> list[Piece]:
        switches: dict[str, Any] = {
            "enable_thinking": conversation.thinking,
            "preserve_thinking": conversation.preserve_thinking,
        }
        if conversation.thinking:
            switches["reasoning_effort"] = conversation.effort
        messages = [_templated(message) for message in conversation.messages]
        return self._tokenizer.chat_pieces(messages, conversation.tools, generate, **switches)

    def _ids(self, pieces: Sequence[Piece]) -> array:
        ids = array("i")
        for piece, control in pieces:
            if control:
                ids.append(self._tokenizer.control[piece])
            else:
                ids += self._segments.ids(piece)
        return ids


def _check_final(conversation: Conversation) -> None:
    where = "messages"
    if not conversation.continue_final:
        raise PromptError(
            where, "the last one is an assistant's; add a user's, or ask to continue it"
        )
    if conversation.messages[-1].calls:
        raise PromptError(where, "the last one ends in a tool call; add the call's result")


def _templated(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.role == "assistant":
        found["reasoning_content"] = message.reasoning or ""
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
        if calls:
            found["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return found


def _form(message: Message) -> Form:
    calls = [(call.name, call.arguments) for call in message.calls]
    return Form(message.text, message.reasoning or "", calls)


def _turns(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of each turn; what stands before the first one belongs to it."""
    turns: list[list[Piece]] = [[]]
    opened = False
    for piece in pieces:
        if piece == (OPEN, True):
            if opened:
                turns.append([])
            opened = True
        turns[-1].append(piece)
    return turns


def _is_answer(turn: Sequence[Piece]) -> bool:
    after = turn.index((OPEN, True)) + 1 if (OPEN, True) in turn else len(turn)
    return after < len(turn) and turn[after][0].startswith(ANSWERS)


def _end(turn: Sequence[Piece]) -> int:
    """Where the turn's end token stands."""
    places = [n for n, piece in enumerate(turn) if piece == (CLOSE, True)]
    return places[-1] if places else len(turn)


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
    functions = [tool.get("function") for tool in tools]
    return [
        Tool(function["name"], function.get("parameters") or {})
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    ]
