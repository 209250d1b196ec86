"""What an answer may be, token by token: JSON after a schema, or tool calls in Qwen's XML.

llguidance does the matching: it names the schema keywords that it does not know, takes markers as
token ids (their characters spelled by other tokens are no marker), and depends on nothing.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import llguidance
import torch
from jaxtyping import Int32
from torch import Tensor

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.job import Constraint, Tool
from tr.serve.schemas import ALL, members, properties, types

SPACE = r"(\n[ \t]{0,32}| ?)"  # between JSON's parts: a line break with its indent, or a blank
OPENS, CLOSES = "<tool_call>", "</tool_call>"
END = "\n</parameter>\n"
KEPT = 64  # compiled grammars


class Matcher:
    """An answer in progress. `done`: it is complete, and no token can follow."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def done(self) -> bool:
        return self._matcher.is_stopped()

    def allows(self, token: int) -> bool:
        return self._matcher.validate_tokens([token]) == 1

    def accept(self, token: int) -> None:
        """Raises ValueError for a token that is not allowed, which ends the matcher's use."""
        if not self._matcher.consume_token(token):
            raise ValueError(f"constraint: token {token} is refused: {self._matcher.get_error()}")

    def mask(self) -> Int32[Tensor, " words"]:
        """The allowed ids as `tr.decode.rule` has them; end tokens where the answer may end."""
        return torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.int32)

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` accepted ones."""
        self._matcher.rollback(tokens)


class Grammars:
    """Makes matchers over one tokenizer; safe from any thread. `eos` may end an answer."""

    def __init__(self, tokenizer: Tokenizer, eos: Sequence[int]) -> None:
        self._tokenizer, self._eos = tokenizer, eos
        self._lock = threading.Lock()
        self._known: Any = None
        self._compiled: dict[str, Any] = {}

    def matcher(
        self, constraint: Constraint, tools: Sequence[Tool] = (), parallel: bool = True
    ) -> Matcher:
        """Raises ValueError naming what of the constraint cannot be kept to."""
        grammar = self._grammar(constraint, tools, parallel)
        with self._lock:
            if self._known is None:
                self._known = _known(self._tokenizer, self._eos)
            found = self._compiled.pop(grammar, None)
            if found is None:
                found = _compile(self._known, grammar)
            self._compiled[grammar] = found  # the latest stands last
            while len(self._compiled) > KEPT:
                del self._compiled[next(iter(self._compiled))]
            return Matcher(found.deep_copy())

    def _grammar(self, c: Constraint, tools: Sequence[Tool], parallel: bool) -> str:
        if c.kind == "json_object":
            return _json_grammar({"type": "object"})
        if c.kind == "json_schema":
            if not isinstance(c.schema, Mapping):
                raise ValueError("constraint.schema: expected a JSON schema, an object")
            return _json_grammar(c.schema)
        if c.kind != "tools":
            raise ValueError(
                f"constraint.kind: expected json_object, json_schema or tools, got {c.kind!r}"
            )
        chosen = [t for t in tools if not c.forced or t.name == c.forced]
        if not chosen:
            raise ValueError(f"constraint: there is no tool {c.forced or 'to call'}")
        if missing := [m for m in (OPENS, CLOSES) if m not in self._tokenizer.control]:
            raise ValueError(f"constraint: the tokenizer has no {missing[0]}")
        opens, closes = (self._tokenizer.control[m] for m in (OPENS, CLOSES))
        several = ' ("\\n" call)*' if parallel and not c.forced else ""
        names = " | ".join(f"f{i}" for i in range(len(chosen)))
        lines = [
            f"start: call{several}",
            f'call: <[{opens}]> "\\n" ({names}) "\\n" <[{closes}]>',
            f"text[suffix={_quoted(END)}]: /(?s:.*)/",
        ]
        for i, tool in enumerate(chosen):
            lines += _function(f"f{i}", tool)
        return llguidance.LLMatcher.grammar_from_lark("\n".join(lines))


def _known(tokenizer: Tokenizer, eos: Sequence[int]) -> Any:
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Vocabulary(tokenizer, eos)),
        n_vocab=tokenizer.count,
        eos_token=list(eos),
    )


class _Vocabulary:
    """A tokenizer as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer, eos: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = eos[0], None
        self.tokens = [piece or b"" for piece in tokenizer.pieces]
        self.special_token_ids = sorted(tokenizer.control.values())

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def _compile(known: Any, grammar: str) -> Any:
    matcher = llguidance.LLMatcher(known, grammar, log_level=0)
    if error := matcher.get_error():
        raise ValueError(f"constraint: {' '.join(error.split())[:300]}")
    matcher.compute_bitmask()  # shows dead ends
    if matcher.is_stopped() and not matcher.is_accepting():
        raise ValueError("constraint: no answer can match it")
    return matcher


def _json_grammar(schema: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(schema)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"constraint.schema: it is no JSON value: {error}") from error
    return llguidance.LLMatcher.grammar_from_json_schema(
        text, overrides={"whitespace_flexible": True, "whitespace_pattern": SPACE}
    )


def _function(name: str, tool: Tool) -> Iterator[str]:
    """One call's rules. Parameters stand in the schema's order, required ones always."""
    required = tool.parameters.get("required")
    required = required if isinstance(required, list) else []
    parts = [_quoted(f"<function={tool.name}>\n")]
    for i, (key, schema) in enumerate(properties(tool).items()):
        parts.append(f"{name}p{i}" + ("" if key in required else "?"))
        opening = _quoted(f"<parameter={key}>\n")
        yield f"{name}p{i}: {opening} {_value(schema, tool.parameters)}"
    yield f'{name}: {" ".join(parts)} "</function>"'


def _value(schema: Any, root: Mapping[str, Any]) -> str:
    """A parameter's text and what closes it; text of any kind where a string may stand."""
    kinds = types(schema, root)
    if kinds == {"string"}:
        words = members(schema, root)
        if words and all(isinstance(word, str) and END not in word for word in words):
            return f"({' | '.join(map(_quoted, words))}) {_quoted(END)}"
    if "string" in kinds or kinds == ALL:
        return "text"
    defined = {key: root[key] for key in ("$defs", "definitions") if key in root}
    whole = {**defined, **schema, "x-guidance": {"lenient": True, "whitespace_pattern": SPACE}}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(whole))
    if llguidance.LLMatcher.validate_grammar(grammar):
        return "text"
    return f"(%json {json.dumps(whole)}) {_quoted(END)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
