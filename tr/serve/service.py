"""What all routes share: the engine, the prompter, the options, and the way between two threads.

A request is rendered, tokenised and checked before the first byte of its answer, so that what is
wrong with it is a status. Text work has one thread of its own: the loop never waits for it, and it
never waits for the device.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.conversation import Conversation
from tr.serve.engine import Closed, Engine, QueueFull
from tr.serve.errors import (
    AGAIN,
    FAULT,
    FULL,
    INVALID,
    LATE,
    NEVER,
    UNKNOWN_MODEL,
    UNREADY,
    ApiError,
    invalid,
    too_long,
)
from tr.serve.job import Constraint, Failed, Finished, JobEvent, Request, Settings, Update
from tr.serve.knobs import Knobs, seeded
from tr.serve.metrics import Metrics, Watch
from tr.serve.prompt import Prompter, PromptError, Rendered
from tr.serve.schemas import check_tools
from tr.serve.thinking import Defaults
from tr.serve.tools import NO_TOOLS, Tools

T = TypeVar("T")
HALVES = re.compile("[\ud800-\udfff]")
AGAIN_AFTER = 0.05  # seconds between tries of a further answer's place in the queue
SIDE_TOKENS = 4096  # prompts up to here may pass a long one, with answers up to SIDE_ANSWER
SIDE_ANSWER = 512


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


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the engine gets: one request for each answer, all to the same prompt."""

    requests: Sequence[Request]
    rendered: Rendered | None = None  # None: no conversation, so nothing to remember of it


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
        if len(conversation.messages) > self.engine.capacity:  # each has a token at least
            raise too_long(len(conversation.messages), self.engine.capacity)
        parts = (part for m in conversation.messages for part in m.parts)
        told = (tool["function"].get("description") for tool in conversation.tools)
        self.check_length(sum(len(text) for text in (*parts, *told) if isinstance(text, str)))
        return await self.in_text_thread(self.prompter.render, conversation)

    async def encode(self, text: str, special: bool) -> list[int]:
        """Ids of a text as it stands; control strings in it are control tokens if `special`."""
        self.check_length(len(text))
        if HALVES.search(text):
            raise ApiError(INVALID, "text: holds half of a surrogate pair")
        return await self.in_text_thread(self.tokenizer.encode, text, special)

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
        rendered = await self.render(ask.conversation)
        most = self.room(len(rendered.ids), ask.max_tokens)
        tools, size = ask.tools, len(rendered.ids)
        await self.in_text_thread(check_tools, tools.callable)
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
        return await self.checked(request, ask.n, rendered, ask.format)

    async def checked(
        self,
        request: Request,
        n: int = 1,
        rendered: Rendered | None = None,
        format: str = "response_format",
    ) -> Prepared:
        try:
            await self.in_text_thread(self.engine.check, request)
        except ApiError as error:  # in the engine's own words
            wanted = "tools" if request.tools else format
            told = re.sub(r"^constraint\b", wanted, error.message).removeprefix("sampling.")
            raise ApiError(error.kind, told, re.split(r"[:\[ ]", told)[0]) from error
        settings = [seeded(request.settings, index) for index in range(n)]
        return Prepared([replace(request, settings=s) for s in settings], rendered)

    def room(self, prompt: int, asked: int | None) -> int:
        """Tokens that an answer may have; raises where too few are left to be of use."""
        left = self.engine.capacity - prompt
        wanted = self.options.max_tokens if asked is None else asked
        if left < min(wanted, self.options.least_room):
            raise too_long(prompt, self.engine.capacity)
        return min(wanted, left)

    def submit(self, prepared: Sequence[Prepared], tick: float = 0) -> "Reply":
        """Queue the first of all the answers; raises 429 or 529 where the queue is full."""
        return Reply(self, prepared, tick)

    def remember(self, rendered: Rendered, ids: Sequence[int]) -> None:
        """Before a next turn can be rendered: the text thread takes things in order."""
        self._text.submit(self.prompter.finished, rendered, ids)

    @staticmethod
    def now() -> int:
        return int(time.time())

    @property
    def healthy(self) -> bool:
        return self.engine.alive and self.engine.state().beat < self.options.stall

    def close(self) -> None:
        """Cancel what waits and runs, and join the threads."""
        self.engine.close()
        self._text.shutdown()


@dataclass(eq=False)
class Reply:
    """The answers to one request, made one after another; `leave` gives up what is not done."""

    service: Service
    prepared: Sequence[Prepared]
    tick: float = 0  # seconds between the Nones among the events; 0: there are none
    _job: Any = field(init=False)
    _over: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[JobEvent | None] = asyncio.Queue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._late = False
        self._todo = [(one.rendered, r) for one in self.prepared for r in one.requests]
        self._start(self._todo[0][1])
        self._timers["end"] = self._loop.call_later(self.service.options.request, self._end)
        if self.tick:
            self._ticks()

    async def events(self) -> AsyncGenerator[tuple[int, JobEvent | None], None]:
        """Each answer's number and its events, a `Finished` last; raises ApiError."""
        try:
            for index, (rendered, request) in enumerate(self._todo):
                if index:
                    await self._again(request)
                ids: list[int] = []
                while True:
                    event = await self._queue.get()
                    if self._late:
                        seconds = self.service.options.request
                        raise ApiError(LATE, f"not done after {seconds:g} seconds", headers=NEVER)
                    if event is None:
                        yield index, None
                        continue
                    if isinstance(event, Failed):
                        self._over = True
                        raise ApiError(FAULT, event.message)
                    if isinstance(event, Update):
                        ids += event.ids
                    self._watch.see(event)
                    if isinstance(event, Finished):
                        break
                    yield index, event
                self._over = True
                if event.reason == "cancelled":
                    raise ApiError(UNREADY, "the server is shutting down", headers=NEVER)
                if rendered is not None:
                    self.service.remember(rendered, ids)
                yield index, event
        finally:
            self.leave()

    def leave(self) -> None:
        """The client is gone, or had enough."""
        for timer in self._timers.values():
            timer.cancel()
        if not self._over:
            self._over = True
            self._watch.left(self._job.phase)
            self._job.cancel()

    def _start(self, request: Request) -> None:
        try:
            self._job = self.service.engine.submit(request, self._deliver, checked=True)
        except QueueFull as error:
            raise ApiError(FULL, str(error), headers=AGAIN) from error
        except Closed as error:
            raise ApiError(UNREADY, "the engine does not run", headers=AGAIN) from error
        self._watch, self._over = Watch(self.service.metrics), False

    async def _again(self, request: Request) -> None:
        """A further answer waits for a place in the queue, since the first one is out already."""
        while True:
            try:
                return self._start(request)
            except ApiError as error:
                if error.kind is not FULL or self._late:
                    raise
            await asyncio.sleep(AGAIN_AFTER)

    def _end(self) -> None:
        self._late = True
        self._queue.put_nowait(None)

    def _ticks(self) -> None:
        self._queue.put_nowait(None)
        self._timers["tick"] = self._loop.call_later(self.tick, self._ticks)

    def _deliver(self, event: JobEvent) -> None:
        """Called by the engine's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
