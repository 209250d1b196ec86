"""What all routes share: the engine, the prompter, the options and the figures.

A request is rendered, tokenised and checked before the first byte of its answer, so that what is
wrong with it is a status. Text work has one thread of its own: the loop never waits for it, and it
never waits for the device.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.conversation import Conversation
from tr.serve.delivery import Delivery, Prepared
from tr.serve.engine import WARMING, Engine
from tr.serve.errors import INVALID, UNKNOWN_MODEL, ApiError, invalid, too_long
from tr.serve.job import Constraint, Request
from tr.serve.knobs import Knobs, seeded
from tr.serve.metrics import Metrics
from tr.serve.options import Options
from tr.serve.prompt import Prompter, PromptError, Rendered
from tr.serve.schemas import check_tools
from tr.serve.tools import NO_TOOLS, Tools

T = TypeVar("T")
HALVES = re.compile("[\ud800-\udfff]")
SIDE_TOKENS = 4096  # prompts up to here may pass a long one, with answers up to SIDE_ANSWER
SIDE_ANSWER = 512
OK = "ok"


@dataclass(frozen=True)
class Ask:
    """A request of any protocol, checked field by field; `format` is the name of the field that
    `constraint` comes from.
    """

    conversation: Conversation
    knobs: Knobs
    max_tokens: int | None
    thinking_budget: int | None = None
    tools: Tools = NO_TOOLS
    constraint: Constraint | None = None
    format: str = "response_format"
    stop: Sequence[str] = ()
    n: int = 1
    logprobs: int | None = None


class Service:
    def __init__(self, engine: Engine, tokenizer: Tokenizer, options: Options) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.prompter = Prompter(tokenizer)
        self.options, self.metrics = options, Metrics()
        self.started = int(time.time())
        self._text = ThreadPoolExecutor(1, "tr-text")
        self._longest = max(len(piece or b"") for piece in tokenizer.pieces)  # bytes of a token

    async def in_text_thread(self, work: Callable[..., T], *args: Any) -> T:
        """`work` where it does not hold up the loop; a mistake it names is a 400."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._text, work, *args)
        except PromptError as error:
            raise ApiError(INVALID, str(error), error.field) from error
        except ValueError as error:
            raise ApiError(INVALID, str(error)) from error
        except RecursionError as error:
            raise ApiError(INVALID, "body: nested too deeply") from error

    def check_model(self, name: str) -> None:
        if self.options.strict_model and name not in (self.options.model, *self.options.aliases):
            known = ", ".join((self.options.model, *self.options.aliases))
            raise ApiError(UNKNOWN_MODEL, f"model: expected one of {known}", "model")

    async def render(self, conversation: Conversation) -> Rendered:
        self.check_size(conversation)
        return await self.in_text_thread(self.prompter.render, conversation)

    async def encode(self, text: str, special: bool) -> list[int]:
        """Ids of a text as it stands; control strings in it are control tokens if `special`."""
        self.check_length(len(text))
        if HALVES.search(text):
            raise ApiError(INVALID, "text: holds half of a surrogate pair")
        return await self.in_text_thread(self.tokenizer.encode, text, special)

    def check_size(self, conversation: Conversation) -> None:
        """`check_length` of all that a conversation holds."""
        if len(conversation.messages) > self.engine.capacity:  # each has a token at least
            raise too_long(len(conversation.messages), self.engine.capacity)
        parts = (part for m in conversation.messages for part in m.parts)
        told = (tool["function"].get("description") for tool in conversation.tools)
        self.check_length(sum(len(text) for text in (*parts, *told) if isinstance(text, str)))

    def check_length(self, characters: int) -> None:
        """Refuses what cannot fit whatever its tokens are, before they are looked for: that takes
        seconds, and others wait. The number told is an estimate.
        """
        if characters > self.engine.capacity * self._longest:
            raise too_long(max(characters // 4, self.engine.capacity + 1), self.engine.capacity)

    async def prepare(self, ask: Ask) -> Prepared:
        """Rendered, within the window and accepted by the engine's own check."""
        if ask.constraint and ask.tools.callable:
            raise invalid(
                ask.format, "cannot be demanded with tools; send tool_choice none or no tools"
            )
        self.check_size(ask.conversation)
        return await self.in_text_thread(self._prepare, ask)

    def _prepare(self, ask: Ask) -> Prepared:
        rendered, tools = self.prompter.render(ask.conversation), ask.tools
        size = len(rendered.ids)
        most = self.room(size, ask.max_tokens)
        check_tools(tools.callable)
        own = self.options.thoughtful if rendered.thinking else self.options.plain
        request = Request(
            ids=rendered.ids,
            max_tokens=most,
            settings=ask.knobs.settings(own),
            stop=ask.stop,
            marks=rendered.marks,
            tools=tools.callable,
            parallel_tool_calls=tools.parallel,
            constraint=ask.constraint or tools.constraint,
            thinking=rendered.thinking,
            thinking_budget=ask.thinking_budget if rendered.thinking else None,
            logprobs=ask.logprobs,
            min_tokens=ask.knobs.min_tokens or 0,
            ignore_eos=bool(ask.knobs.ignore_eos),
            side=not tools.callable and size <= SIDE_TOKENS and most <= SIDE_ANSWER,
        )
        return self._checked(request, ask.n, rendered, ask.format)

    async def checked(self, request: Request, n: int) -> Prepared:
        """A prompt that is no conversation, accepted by the engine."""
        return await self.in_text_thread(self._checked, request, n)

    def _checked(
        self,
        request: Request,
        n: int,
        rendered: Rendered | None = None,
        format: str = "response_format",
    ) -> Prepared:
        try:
            self.engine.check(request)
        except ValueError as error:  # in the engine's own words
            wanted = "tools" if request.tools else format
            told = re.sub(r"^constraint\b", wanted, str(error)).removeprefix("sampling.")
            raise ApiError(INVALID, told, re.split(r"[:\[ ]", told)[0]) from error
        settings = [seeded(request.settings, index) for index in range(n)]
        return Prepared([replace(request, settings=s) for s in settings], rendered)

    def room(self, prompt: int, asked: int | None) -> int:
        """Tokens that an answer may have; raises where too few are left to be of use."""
        left = self.engine.capacity - prompt
        wanted = self.options.max_tokens if asked is None else asked
        if left < min(wanted, self.options.least_room):
            raise too_long(prompt, self.engine.capacity)
        return min(wanted, left)

    def submit(self, prepared: Sequence[Prepared], tick: float = 0) -> Delivery:
        """Queue the first of all the answers; raises 429 or 529 where the queue is full."""
        return Delivery(self.engine, self.options, self.metrics, prepared, self.remember, tick)

    def remember(self, rendered: Rendered, ids: Sequence[int]) -> None:
        """Before a next turn can be rendered: the text thread takes things in order."""
        self._text.submit(self.prompter.finished, rendered, ids)

    @staticmethod
    def now() -> int:
        return int(time.time())

    @property
    def status(self) -> str:
        """OK where requests can be served now."""
        state = self.engine.state()
        if not self.engine.alive:
            return "the engine does not run"
        if state.phase == WARMING:
            return "warming up"
        return OK if state.beat < self.options.stall else "the engine gives no sign"

    def close(self) -> None:
        """Cancel what waits and runs, and join the threads."""
        self.engine.close()
        self._text.shutdown()
