"""POST /v1/chat/completions: OpenAI's Chat Completions, streamed and not."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve import logprobs, thinking
from tr.serve.answer import Answer, Called, timings
from tr.serve.chat_input import messages
from tr.serve.conversation import Conversation
from tr.serve.errors import ApiError, invalid, openai
from tr.serve.events import CallArguments, CallOpened, Reasoning, Text
from tr.serve.formats import response_format
from tr.serve.job import Finished, JobEvent, Update, Usage
from tr.serve.knobs import Knobs, stops, token_budget
from tr.serve.replies import answered, streamed
from tr.serve.service import Ask, Service
from tr.serve.shapes import ChatMessage, ChatTool, Format
from tr.serve.tools import from_chat
from tr.serve.wire import comment, data

REASONS = {"string": "stop", "window": "length"}
Body = dict[str, Any]


class ChatRequest(Knobs):
    """Unknown fields are ignored; what would change the answer and cannot is refused by name."""

    model: str = ""
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    timings: bool | None = None


def ask(body: ChatRequest, service: Service) -> Ask:
    """The request in neutral words; raises ApiError naming the field."""
    service.check_model(body.model)
    body.refuse_unsupported()
    raw = body.given()
    thought = thinking.openai(raw, service.options.thinking)
    tools = from_chat(raw)
    n = body.n or 1
    if n > service.options.answers:
        raise invalid("n", f"expected 1 .. {service.options.answers}, got {n}")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "needs logprobs=true")
    limits = {
        "max_completion_tokens": body.max_completion_tokens,
        "max_tokens": body.max_tokens,
    }
    return Ask(
        Conversation(
            messages(body.messages),
            tools.listed,
            thought.on,
            thought.effort,
            thought.preserve,
            bool(body.continue_final_message),
        ),
        body,
        token_budget(limits),
        thought.budget,
        tools,
        response_format(body.response_format, "response_format"),
        stop=stops(body.stop, "stop"),
        n=n,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


def usage(told: Sequence[Usage], answers: int) -> Body:
    """A prompt counts once, however many `answers` it got."""
    firsts = told[::answers]
    prompt, completion = sum(u.prompt for u in firsts), sum(u.completion for u in told)
    accepted, drafted = sum(u.accepted for u in told), sum(u.drafted for u in told)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(u.reused for u in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(u.reasoning for u in told),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def call(called: Called) -> Body:
    function = {"name": called.name, "arguments": called.arguments or "{}"}
    return {"id": called.id, "type": "function", "function": function}


def choice(index: int, answer: Answer, tokenizer: Tokenizer, told: bool) -> Body:
    message: Body = {"role": "assistant", "content": answer.text}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [call(one) for one in answer.calls]
    reason = answer.finished.reason
    return {
        "index": index,
        "message": message,
        "logprobs": {"content": logprobs.chat(tokenizer, answer.logprobs)} if told else None,
        "finish_reason": REASONS.get(reason, reason),
    }


class ChatStream:
    """Chunks: the role, pieces, a finish reason for each answer, the usage if asked for, [DONE]."""

    def __init__(
        self, head: Body, tokenizer: Tokenizer, answers: int, told: bool, used: bool, timed: bool
    ) -> None:
        self.head, self.tokenizer, self.told = head, tokenizer, told
        self.answers, self.used, self.timed = answers, used, timed
        self.usages: list[Usage] = []

    def open(self) -> bytes:
        roles = ({"role": "assistant", "content": ""} for _ in range(self.answers))
        return b"".join(self._chunk(index, role) for index, role in enumerate(roles))

    def push(self, index: int, event: JobEvent) -> bytes:
        if isinstance(event, Finished):
            self.usages.append(event.usage)
            return self._chunk(index, {}, REASONS.get(event.reason, event.reason))
        if not isinstance(event, Update):
            return b""
        deltas = [delta for piece in event.events if (delta := self._delta(piece))]
        if not self.told:
            return b"".join(self._chunk(index, delta) for delta in deltas)
        content = {"content": logprobs.chat(self.tokenizer, event.logprobs)}
        first, *rest = deltas or [{}]
        chunks = [self._chunk(index, delta) for delta in rest]
        return b"".join([self._chunk(index, first, logprobs=content), *chunks])

    def wait(self, seconds: float) -> bytes:
        return comment("keep-alive")

    def close(self) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self.used:
            return done
        last: Body = {"choices": [], "usage": usage(self.usages, self.answers)}
        if self.timed:
            last["timings"] = timings(self.usages[-1])
        return data(self.head | last) + done

    def fail(self, error: ApiError) -> bytes:
        return data(openai(error)) + b"data: [DONE]\n\n"

    def _delta(self, piece: Any) -> Body:
        if isinstance(piece, Reasoning | Text) and piece.text:
            name = "content" if isinstance(piece, Text) else "reasoning_content"
            return {name: piece.text}
        if isinstance(piece, CallOpened):
            function = {"name": piece.name, "arguments": ""}
            opened = {"index": piece.index, "id": piece.id, "type": "function"}
            return {"tool_calls": [{**opened, "function": function}]}
        if isinstance(piece, CallArguments):
            return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.json}}]}
        return {}

    def _chunk(
        self, index: int, delta: Body, reason: str | None = None, logprobs: Body | None = None
    ) -> bytes:
        one = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        chunk: Body = {**self.head, "choices": [one]}
        if self.used:
            chunk["usage"] = None
        return data(chunk)


def beginning(prefix: str, kind: str, model: str, service: Service) -> Body:
    """What a whole reply and each chunk of a streamed one begin with."""
    return {
        "id": f"{prefix}-{uuid4().hex}",
        "object": kind,
        "created": service.now(),
        "model": model or service.options.model,
        "system_fingerprint": None,
    }


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", summary="Chat Completions")
    @router.post("/chat/completions", include_in_schema=False)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        asked = ask(body, service)
        prepared = await service.prepare(asked)
        told, tokenizer = asked.logprobs is not None, service.tokenizer
        head = beginning("chatcmpl", "chat.completion", body.model, service)
        if body.stream:
            head["object"] = "chat.completion.chunk"
            used = bool((body.stream_options or {}).get("include_usage"))
            timed = bool(body.timings)
            writer = ChatStream(head, tokenizer, asked.n, told, used, timed)
            return streamed(service, [prepared], writer)

        def content(answers: Sequence[Answer]) -> Body:
            choices = [choice(i, a, tokenizer, told) for i, a in enumerate(answers)]
            usages = [a.finished.usage for a in answers]
            more = {"timings": timings(usages[-1])} if body.timings else {}
            return {**head, "choices": choices, "usage": usage(usages, asked.n), **more}

        return await answered(service, [prepared], request, content)

    return router
