"""What a server was told at its start, whatever the protocol."""

from collections.abc import Sequence
from dataclasses import dataclass

from tr.serve.job import Settings
from tr.serve.thinking import Defaults


@dataclass(frozen=True)
class Options:
    """`plain`, `thoughtful`: how tokens are drawn without and with a thought, where a request does
    not say. Seconds where not said otherwise.
    """

    model: str
    thinking: Defaults = Defaults()
    plain: Settings = Settings()
    thoughtful: Settings = Settings()
    aliases: Sequence[str] = ()
    strict_model: bool = False  # refuse other names than model and aliases
    max_tokens: int = 32768  # of an answer where a request says nothing
    least_room: int = 512  # tokens; a prompt that leaves less for its answer is too long
    answers: int = 16  # n at most
    keep_alive: float = 12
    open_block: float = 60  # then a waiting Anthropic stream opens its first block
    patience: float = 60  # for a client that does not read
    request: float = 3600
    stall: float = 300  # without a sign of the engine's thread, the server is not healthy
    body: float = 60
    body_bytes: int = 64 * 2**20
    window_reason: bool = False  # Anthropic: model_context_window_exceeded for a full window
