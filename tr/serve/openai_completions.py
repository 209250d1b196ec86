"""POST /v1/completions: text goes on as it stands, markup and thoughts as plain text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve import logprobs
from tr.serve.answer import Answer, timings
from tr.serve.delivery import Prepared
from tr.serve.errors import ApiError, invalid, openai
from tr.serve.events import Text
from tr.serve.formats import response_format
from tr.serve.job import Finished, JobEvent, PromptLogprobs, TokenLogprob, Update, Usage
from tr.serve.job import Request as Job
from tr.serve.knobs import Knobs, stops
from tr.serve.openai_chat import REASONS, Body, beginning, usage
from tr.serve.replies import answered, streamed
from tr.serve.service import Service
from tr.serve.shapes import Format
from tr.serve.wire import comment, data

PROMPTS = 64  # of one request
DEFAULT_TOKENS = 16  # OpenAI's own


class CompletionRequest(Knobs):
    model: str = ""
    prompt: str | list[str] | list[int] | list[list[int]]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Format | None = None
    timings: bool | None = None


@dataclass(frozen=True)
class Echo:
    """What stands before an answer's own text: the prompt, where it is wanted back."""

    text: str
    ids: Sequence[int]


async def prepare(body: CompletionRequest, service: Service) -> list[tuple[Prepared, Echo]]:
    service.check_model(body.model)
    body.refuse_unsupported()
    answers, most = body.n or 1, service.options.answers
    if answers > most:
        raise invalid("n", f"expected 1 .. {most}, got {answers}")
    wanted = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    told_prompt = body.logprobs if body.echo else None
    if wanted == 0 and told_prompt is None:
        raise invalid("max_tokens", "0 is for echo with logprobs alone; expected at least 1")
    constraint = response_format(body.response_format, "response_format")
    found = []
    for ids in await _ids(body.prompt, service):
        request = Job(
            ids=ids,
            max_tokens=service.room(len(ids), wanted),
            settings=body.settings(service.options.plain),
            stop=stops(body.stop, "stop"),
            constraint=constraint,
            raw=True,
            logprobs=body.logprobs,
            prompt_logprobs=told_prompt,
            min_tokens=body.min_tokens or 0,
            ignore_eos=bool(body.ignore_eos),
        )
        text = service.tokenizer.decode(ids) if body.echo else ""
        found.append((await service.checked(request, answers), Echo(text, ids)))
    return found


async def _ids(prompt: Any, service: Service) -> list[list[int]]:
    """One list of ids for each prompt; control strings of a text are control tokens here."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    if not 0 < len(prompt) <= PROMPTS:
        raise invalid("prompt", f"expected 1 .. {PROMPTS} prompts, got {len(prompt)}")
    found = []
    for index, one in enumerate(prompt):
        ids = await service.encode(one, special=True) if isinstance(one, str) else one
        wrong = next((i for i in ids if not 0 <= i < service.tokenizer.count), None)
        if wrong is not None:
            raise invalid(f"prompt[{index}]", f"no token has the id {wrong}")
        if not ids:
            raise invalid(f"prompt[{index}]", "expected at least one token, got none")
        found.append(ids)
    return found


def with_ids(known: Sequence[TokenLogprob | None], ids: Sequence[int]) -> list[TokenLogprob | int]:
    """A prompt's logarithms; its first token, which has none, by its id."""
    return [token or id for token, id in zip(known, ids, strict=True)] if known else []


def choice(index: int, answer: Answer, echo: Echo, tokenizer: Tokenizer, told: bool) -> Body:
    reason = answer.finished.reason
    tokens = [*with_ids(answer.prompt_logprobs, echo.ids), *answer.logprobs]
    return {
        "index": index,
        "text": echo.text + answer.text,
        "logprobs": logprobs.Legacy(tokenizer).told(tokens) if told else None,
        "finish_reason": REASONS.get(reason, reason),
    }


class CompletionStream:
    """Chunks of text; an echoed prompt is the first one of its answer."""

    def __init__(
        self,
        head: Body,
        tokenizer: Tokenizer,
        echoes: Sequence[Echo],
        answers: int,
        told: bool,
        used: bool,
    ) -> None:
        self.head, self.tokenizer, self.echoes = head, tokenizer, echoes
        self.answers, self.told, self.used = answers, told, used
        self.usages: list[Usage] = []
        self._index = -1  # of the answer that is being written
        self._logprobs = logprobs.Legacy(tokenizer)

    def open(self) -> bytes:
        return comment("open")

    def push(self, index: int, event: JobEvent) -> bytes:
        out, echo = b"", self.echoes[index]
        if index != self._index:
            self._index, self._logprobs = index, logprobs.Legacy(self.tokenizer)
            out = self._chunk(echo.text) if echo.text else b""
        if isinstance(event, PromptLogprobs):
            out += self._chunk("", with_ids(event.logprobs, echo.ids))
        elif isinstance(event, Finished):
            self.usages.append(event.usage)
            out += self._chunk("", reason=REASONS.get(event.reason, event.reason))
        elif isinstance(event, Update):
            text = "".join(piece.text for piece in event.events if isinstance(piece, Text))
            if text or event.logprobs:
                out += self._chunk(text, event.logprobs)
        return out

    def wait(self, seconds: float) -> bytes:
        return comment("keep-alive")

    def close(self) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self.used:
            return done
        return data({**self.head, "choices": [], "usage": usage(self.usages, self.answers)}) + done

    def fail(self, error: ApiError) -> bytes:
        return data(openai(error)) + b"data: [DONE]\n\n"

    def _chunk(
        self, text: str, tokens: Sequence[TokenLogprob | int] = (), reason: str | None = None
    ) -> bytes:
        shown = self._logprobs.told(tokens) if self.told and tokens else None
        one = {"index": self._index, "text": text, "logprobs": shown, "finish_reason": reason}
        return data({**self.head, "choices": [one]})


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", summary="Completions")
    @router.post("/completions", include_in_schema=False)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        found = await prepare(body, service)
        prepared = [one for one, _ in found]
        echoes = [echo for one, echo in found for _ in one.requests]
        tokenizer, told, answers = service.tokenizer, body.logprobs is not None, body.n or 1
        head = beginning("cmpl", "text_completion", body.model, service)
        if body.stream:
            used = bool((body.stream_options or {}).get("include_usage"))
            writer = CompletionStream(head, tokenizer, echoes, answers, told, used)
            return streamed(service, prepared, writer)

        def content(told_answers: Sequence[Answer]) -> Body:
            pairs = enumerate(zip(told_answers, echoes, strict=True))
            choices = [choice(i, a, echo, tokenizer, told) for i, (a, echo) in pairs]
            usages = [a.finished.usage for a in told_answers]
            more = {"timings": timings(usages[-1])} if body.timings else {}
            return {**head, "choices": choices, "usage": usage(usages, answers), **more}

        return await answered(service, prepared, request, content)

    return router
