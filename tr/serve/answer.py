"""A whole answer, put together from the events that a stream would have carried."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tr.serve.events import CallArguments, CallClosed, CallCut, CallOpened, Event, Reasoning, Text
from tr.serve.job import Finished, JobEvent, PromptLogprobs, TokenLogprob, Update, Usage


@dataclass(frozen=True)
class Called:
    """A complete tool call; `arguments`: the text of a JSON object."""

    id: str
    name: str
    arguments: str


Block = Reasoning | Text | Called


@dataclass
class Answer:
    """`blocks` in the order of writing, neighbours of one kind joined. A call that the answer's end
    cut is no call: what was written of it is text.
    """

    blocks: list[Block] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprob | None] = ()
    finished: Finished = Finished("stop", Usage(0, 0, 0))
    cut: bool = False  # the end came inside of a call
    _open: dict[int, CallOpened] = field(default_factory=dict)

    def add(self, event: JobEvent) -> None:
        if isinstance(event, Update):
            self.ids += event.ids
            self.logprobs += event.logprobs
            for piece in event.events:
                self._piece(piece)
        elif isinstance(event, PromptLogprobs):
            self.prompt_logprobs = event.logprobs
        elif isinstance(event, Finished):
            self.finished = event

    @property
    def text(self) -> str:
        return "".join(b.text for b in self.blocks if isinstance(b, Text))

    @property
    def reasoning(self) -> str:
        return "".join(b.text for b in self.blocks if isinstance(b, Reasoning))

    @property
    def calls(self) -> list[Called]:
        return [b for b in self.blocks if isinstance(b, Called)]

    def _piece(self, piece: Event) -> None:
        if isinstance(piece, CallOpened):
            self._open[piece.index] = piece
        elif isinstance(piece, CallClosed):
            opened = self._open.pop(piece.index)
            self.blocks.append(Called(opened.id, opened.name, piece.arguments))
        elif isinstance(piece, CallCut):
            self.cut = True
            self._piece(Text(piece.raw))
        elif not isinstance(piece, CallArguments) and piece.text:
            kind, last = type(piece), self.blocks[-1] if self.blocks else None
            if isinstance(last, kind):
                self.blocks[-1] = kind(last.text + piece.text)
            else:
                self.blocks.append(piece)


async def collect(told: AsyncGenerator[tuple[int, list[JobEvent]], None]) -> list[Answer]:
    answers: list[Answer] = []
    async for index, events in told:
        if index == len(answers):
            answers.append(Answer())
        for event in events:
            answers[index].add(event)
    return answers


def timings(usage: Usage) -> dict[str, Any]:
    """The names that llama.cpp's clients read; milliseconds and tokens."""
    return {
        "cache_n": usage.reused,
        "prompt_n": usage.prompt - usage.reused,
        "prompt_ms": usage.prefill_seconds * 1000,
        "predicted_n": usage.completion,
        "predicted_ms": usage.decode_seconds * 1000,
        "predicted_per_second": rate(usage.completion, usage.decode_seconds),
        "draft_n": usage.drafted,
        "draft_n_accepted": usage.accepted,
        "steps": usage.steps,
        "queue_ms": usage.queue_seconds * 1000,
    }


def rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
