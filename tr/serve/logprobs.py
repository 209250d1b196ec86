"""Logarithms of probabilities in the shapes of Chat Completions and of the older Completions."""

from collections.abc import Sequence
from typing import Any

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.job import TokenLogprob

LEAST = -9999.0  # stands for minus infinity, which JSON has no word for


def chat(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    def one(id: int, logprob: float) -> dict[str, Any]:
        piece = _bytes(tokenizer, id)
        text = piece.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(piece)}

    return [
        one(token.id, token.logprob) | {"top_logprobs": [one(*other) for other in token.top]}
        for token in tokens
    ]


class Legacy:
    """The older shape, piece by piece; offsets are characters from the first token on."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self._decoder, self._offset = tokenizer, tokenizer.detokenizer(), 0

    def told(self, tokens: Sequence[TokenLogprob | int]) -> dict[str, Any]:
        """A bare id is a token without a logarithm: the first of a prompt."""
        names, offsets, logprobs, tops = [], [], [], []
        for token in tokens:
            id = token if isinstance(token, int) else token.id
            names.append(_name(self.tokenizer, id))
            offsets.append(self._offset)
            self._offset += len(self._decoder.push(id))
            if isinstance(token, int):
                logprobs.append(None)
                tops.append(None)
            else:
                logprobs.append(max(token.logprob, LEAST))
                top = {_name(self.tokenizer, i): max(value, LEAST) for i, value in token.top}
                tops.append(top)
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _bytes(tokenizer: Tokenizer, id: int) -> bytes:
    return (tokenizer.pieces[id] or b"") if id < len(tokenizer.pieces) else b""


def _name(tokenizer: Tokenizer, id: int) -> str:
    """A token's text; bytes that are no text by themselves are told as such."""
    piece = _bytes(tokenizer, id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
