"""Text to ids and back: a checkpoint's tokenizer.json and chat template, nothing hard-coded."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from tr.checkpoint.detokenizer import Detokenizer, alphabet, token_bytes
from tr.checkpoint.metadata import listing, read_eos, read_json
from tr.checkpoint.template import Guard, Message, render


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Byte-level BPE. `count` ids have a token; the model's rows past it are padding."""

    full: tokenizers.Tokenizer
    plain: tokenizers.Tokenizer  # the same without control tokens
    control: Mapping[str, int]  # added tokens: special ones and markup such as <think>
    special: frozenset[int]  # ids flagged special: no part of an answer's text
    pieces: Sequence[bytes | None]  # id -> bytes; None: a gap
    template: str | None
    names: Mapping[str, str]  # bos_token, eos_token, ...: what a template may refer to
    eos: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids of `text`; control strings in it are control tokens only if `special`.

        Other threads run meanwhile.
        """
        tokenizer = self.full if special else self.plain
        batch = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return batch[0].ids  # `encode` would hold the interpreter, and takes three times as long

    def decode(self, ids: Iterable[int], special: bool = True) -> str:
        """The text of `ids`; `special` False leaves special tokens out (markup stays)."""
        detokenizer = self.detokenizer(special)
        return detokenizer.extend(ids) + detokenizer.flush()

    def detokenizer(self, special: bool = True) -> Detokenizer:
        return Detokenizer(self.pieces, frozenset() if special else self.special)

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        generate: bool = True,
        **switches: Any,
    ) -> list[int]:
        """Ids of a conversation, opened for an answer if `generate`; `switches` go to the template.

        Control tokens come from the template alone: their strings inside messages and tools are
        encoded as ordinary text.
        """
        ids = []
        for piece, control in self.chat_pieces(messages, tools, generate, **switches):
            ids += [self.control[piece]] if control else self.encode(piece)
        return ids

    def chat_pieces(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        generate: bool = True,
        **switches: Any,
    ) -> list[tuple[str, bool]]:
        """`chat` before it is encoded: the template's control strings, marked True, and the text
        between them.
        """
        guard = Guard(list(self.control), [messages, tools])
        hidden = [{k: v if k == "role" else guard.hide(v) for k, v in m.items()} for m in messages]
        text = self._render(hidden, guard.hide(tools), generate, switches)
        return [
            (piece if control else guard.show(piece), control)
            for piece, control in guard.split(text)
        ]

    def chat_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        generate: bool = True,
        **switches: Any,
    ) -> str:
        """The conversation as the template writes it."""
        return self._render(messages, tools, generate, switches)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        generate: bool,
        switches: Mapping[str, Any],
    ) -> str:
        if self.template is None:
            raise ValueError(
                "tokenizer: no chat template; put the checkpoint's chat_template.jinja beside "
                "tokenizer.json, or give a plain prompt"
            )
        arguments = {**self.names, "add_generation_prompt": generate, **switches}
        return render(self.template, messages, tools or None, **arguments)


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Read tokenizer.json, chat_template.jinja (or tokenizer_config.json's chat_template) and eos.

    Raises FileNotFoundError where tokenizer.json is missing, ValueError for a tokenizer of another
    kind than byte-level BPE.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"tokenizer: {folder} has no tokenizer.json; it holds {listing(folder)}; copy "
            "tokenizer.json, tokenizer_config.json and chat_template.jinja from the checkpoint"
        )
    raw = read_json(path)
    if "ByteLevel" not in json.dumps(raw.get("decoder")):
        raise ValueError(f"{path}: expected a ByteLevel decoder, got {raw.get('decoder')}")
    added = raw.get("added_tokens") or []
    for token in added:
        flags = [f for f in ("lstrip", "rstrip", "single_word", "normalized") if token.get(f)]
        if flags:
            raise ValueError(
                f"{path}: added token {token['content']!r} sets {', '.join(flags)}, which is not "
                "supported; control tokens match exactly"
            )
    full = _build({**raw, "truncation": None, "padding": None, "post_processor": None}, path)
    plain = _build({**json.loads(full.to_str()), "added_tokens": []}, path)
    control = {token["content"]: token["id"] for token in added}
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    names = _names(config)
    return Tokenizer(
        full=full,
        plain=plain,
        control=control,
        special=frozenset(token["id"] for token in added if token.get("special")),
        pieces=_pieces(full, control),
        template=_template(folder, config),
        names=names,
        eos=_eos(folder, names, control),
    )


def _build(raw: Mapping[str, Any], path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(raw))
    except Exception as error:  # the library raises plain Exception for a malformed file
        raise ValueError(f"{path} is not a tokenizer ({error}); fetch the file again") from error


def _pieces(full: tokenizers.Tokenizer, control: Mapping[str, int]) -> list[bytes | None]:
    vocab = full.get_vocab(with_added_tokens=True)
    table = alphabet()
    pieces: list[bytes | None] = [None] * (max(vocab.values()) + 1)
    for token, i in vocab.items():
        pieces[i] = token.encode() if token in control else token_bytes(token, table)
    return pieces


def _names(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and the like: plain strings, or descriptions with a `content`."""
    found = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        if value is not None:
            found[key] = value
    return found


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):  # several by name
        value = {entry["name"]: entry["template"] for entry in value}.get("default")
    return value


def _eos(folder: Path, names: Mapping[str, str], control: Mapping[str, int]) -> tuple[int, ...]:
    if any((folder / name).is_file() for name in ("generation_config.json", "config.json")):
        return read_eos(folder)[0]
    name = names.get("eos_token")
    return (control[name],) if name in control else ()
