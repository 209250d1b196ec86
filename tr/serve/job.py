"""One generation as the engine sees it: what is asked for, what comes back, whatever the protocol.

The HTTP side makes a `Request` (rendered, tokenised, checked) and reads a `Job`'s events; the
engine's thread tells them.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tr.serve.events import Event

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How tokens are drawn; fields and ranges as in `tr.model.sampling.sampling`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; `parameters`: its JSON schema as the client sent it."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Constraint:
    """What the answer must match, from `</think>` on where it thinks.

    `kind`: json_object, json_schema (`schema`) or tools (`schema` is unused; `required`: at least
    one call; `forced`: the name of the one to call).
    """

    kind: str
    schema: Mapping[str, Any] | None = None
    required: bool = False
    forced: str = ""


@dataclass(frozen=True)
class Request:
    """A prompt of token ids, and what is wanted behind it.

    `marks`: lengths of beginnings of `ids` where later prompts may part from this one (ends of
    messages). `thinking`: the answer begins inside a thought. `thinking_budget`: tokens after which
    the thought is closed by force; None: no bound. `raw`: the text as it is, no markup is read.
    `logprobs`: how many alternatives to each token are told, None: no logarithms at all;
    `prompt_logprobs`: the same of the prompt, which is read anew for it. With `max_tokens` 0 the
    prompt alone is read.
    `side`: short and without tools, so that it may be served before a long prompt that waits.
    """

    ids: Sequence[int]
    max_tokens: int
    settings: Settings = Settings()
    stop: Sequence[str] = ()
    marks: Sequence[int] = ()
    tools: Sequence[Tool] = ()
    parallel_tool_calls: bool = True
    constraint: Constraint | None = None
    thinking: bool = False
    thinking_budget: int | None = None
    raw: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    side: bool = False


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the likeliest ones in its place, from the raw logits (natural logarithms)."""

    id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class Started:
    """The prompt is about to be read: `reused` of its tokens were known, `computed` are new.

    `found` says how they were known: see `tr.decode.session.Sessions`.
    """

    reused: int
    computed: int
    found: str


@dataclass(frozen=True)
class Progress:
    """Tokens of the prompt that stand by now, the reused ones included."""

    read: int


@dataclass(frozen=True)
class PromptLogprobs:
    """The prompt's tokens, once it was read; None for the first: nothing stands before it."""

    logprobs: Sequence[TokenLogprob | None]


@dataclass(frozen=True)
class Update:
    """What one step added: pieces of the answer, its token ids, their logarithms if asked for."""

    events: Sequence[Event]
    ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True)
class DraftUse:
    """How often `source` proposed a draft for each place of a step, and how often it was right."""

    source: str
    proposed: Sequence[int]
    accepted: Sequence[int]


@dataclass(frozen=True)
class Usage:
    """Tokens: `prompt` in all, `reused` of them known before; `completion` in all, `reasoning` of
    them inside the thought; `drafted` and `accepted` by speculation, in `steps` steps, by source in
    `drafts`. `found` as `Started` says, empty where none was begun; `unparsed`: <tool_call> tokens
    that began no call. Seconds.
    """

    prompt: int
    reused: int
    completion: int
    reasoning: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    drafts: Sequence[DraftUse] = ()
    found: str = ""
    unparsed: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True)
class Finished:
    """The answer ended. `reason`: stop (end of turn), string (`stop` says which), tool_calls,
    length (as asked for), window (no room is left) or cancelled.
    """

    reason: str
    usage: Usage
    stop: str = ""


@dataclass(frozen=True)
class Failed:
    """The engine could not go on; `message` is safe to show."""

    message: str


JobEvent = Started | Progress | PromptLogprobs | Update | Finished | Failed


class Job:
    """A request on its way. `phase`: queued, prefill, decode or done."""

    def __init__(
        self,
        request: Request,
        deliver: Callable[[JobEvent], None],
        withdraw: Callable[["Job"], None],
    ) -> None:
        self.request, self.phase = request, "queued"
        self._deliver, self._withdraw = deliver, withdraw
        self.cancelled = threading.Event()
        self.born = time.perf_counter()
        self.usage = Usage(len(request.ids), 0, 0)

    def cancel(self) -> None:
        """Stop it between two chunks or steps, or take it out of the queue. From any thread."""
        self.cancelled.set()
        self._withdraw(self)

    def note(self, **figures: Any) -> None:
        self.usage = replace(self.usage, **figures)

    def tell(self, event: JobEvent) -> None:
        """A listener that fails has gone away."""
        if isinstance(event, Finished | Failed):
            self.phase = "done"
        try:
            self._deliver(event)
        except Exception:
            log.warning("a listener failed; its request is cancelled", exc_info=True)
            self.cancelled.set()
