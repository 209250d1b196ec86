"""Text of a model that has none: one character for each token, to look for stop strings in."""


class Signs:
    """A detokenizer."""

    def push(self, token: int) -> str:
        return chr(0x4E00 + token)

    def flush(self) -> str:
        return ""


def signs(tokens: list[int]) -> str:
    return "".join(map(Signs().push, tokens))
