"""Ids to text as they come: bytes are collected until they make whole characters."""

import codecs
from collections.abc import Iterable, Sequence


def alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-ins: character -> byte.

    Printable Latin-1 bytes stand for themselves, the other 68 take the code points from 256 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


def token_bytes(token: str, table: dict[str, int]) -> bytes:
    """The bytes a vocabulary entry stands for."""
    if all(c in table for c in token):
        return bytes(table[c] for c in token)
    return token.encode()


class Detokenizer:
    """`push` an id, get the text that is certain now; `flush` at the end gives the rest.

    The pieces concatenated are the text of all ids. U+FFFD appears only for bytes that cannot be
    UTF-8 whatever follows, or that `flush` finds incomplete. Ids in `silent` give nothing.
    """

    def __init__(self, table: Sequence[bytes | None], silent: frozenset[int] = frozenset()) -> None:
        self._table = table
        self._silent = silent
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        piece = self._table[token] if 0 <= token < len(self._table) else None
        if piece is None:
            raise ValueError(
                f"tokenizer: id {token} has no token; ids are 0..{len(self._table) - 1}"
            )
        return "" if token in self._silent else self._decoder.decode(piece)

    def extend(self, tokens: Iterable[int]) -> str:
        return "".join(map(self.push, tokens))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
