"""A server over a real socket, its engine a script, and clients of both protocols."""

from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import httpx
import openai

from tests.serve.running import Running
from tests.serve.scripted import in_steps
from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.app import create_app
from tr.serve.auth import Rules
from tr.serve.job import Settings
from tr.serve.options import Options
from tr.serve.service import Service
from tr.serve.thinking import Defaults

OPTIONS = Options(
    model="tiny",
    aliases=("claude-tiny",),
    thinking=Defaults(on=False),
    thoughtful=Settings(temperature=1.0, top_p=0.95),
    least_room=64,
    keep_alive=0.15,
    open_block=0.3,
    patience=2,
    request=20,
    body=5,
    body_bytes=12_000_000,
)


class World:
    """A running server, its engine and clients of both protocols."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: Any,
        options: Options = OPTIONS,
        rules: Rules | None = None,
    ) -> None:
        self.tokenizer, self.engine = tokenizer, engine
        self.service = Service(engine, tokenizer, options)
        self.server = Running(create_app(self.service, rules))
        self.url = self.server.url
        self.http = httpx.Client(base_url=self.url, timeout=30)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="x", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=self.url, api_key="x", max_retries=0)

    def says(self, *texts: str, size: int = 3, end: bool = True) -> None:
        """A scripted engine answers by `texts` in turn, the last one again and again."""
        left = list(texts)

        def script(request) -> Iterator[Sequence[int]]:
            text = left.pop(0) if len(left) > 1 else left[0]
            ids = self.tokenizer.encode(text, special=not request.raw)
            yield from in_steps([*ids, *(self.tokenizer.eos[:1] if end else ())], size)

        self.engine.script = script

    def reset(self) -> None:
        """A scripted engine as at the start."""
        self.says("Hello, world.")
        self.engine.refuse = lambda request: None
        self.engine.reused = lambda request: 0
        self.engine.seen.clear()
        self.engine.ended.clear()

    def close(self) -> None:
        self.http.close()
        self.openai.close()
        self.anthropic.close()
        self.server.close()
