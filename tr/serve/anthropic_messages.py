"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages, streamed and not."""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from tr.serve import thinking
from tr.serve.answer import Answer, Block, Called
from tr.serve.conversation import Conversation
from tr.serve.errors import ApiError, anthropic, invalid
from tr.serve.events import CallArguments, CallClosed, CallCut, CallOpened, Event, Reasoning, Text
from tr.serve.formats import response_format
from tr.serve.job import Finished, JobEvent, Update, Usage
from tr.serve.knobs import Knobs, stops
from tr.serve.messages_input import messages, system
from tr.serve.replies import answered, json_response, streamed
from tr.serve.service import Ask, Service
from tr.serve.shapes import Message, MessageTool
from tr.serve.thinking import Thinking
from tr.serve.tools import Tools, from_messages
from tr.serve.wire import event as sse

Body = dict[str, Any]
REASONS = {
    "stop": "end_turn",
    "string": "stop_sequence",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "window": "max_tokens",
}


class CountRequest(Knobs):
    """What a prompt is made of. Unknown fields are ignored."""

    model: str
    messages: list[Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    output_format: dict[str, Any] | None = None


def conversation(body: CountRequest, service: Service) -> tuple[Conversation, Thinking, Tools]:
    service.check_model(body.model)
    raw = body.given()
    thought = thinking.anthropic(raw, service.options.thinking)
    tools = from_messages(raw)
    turns = messages(body.messages)
    goes_on = turns[-1].role == "assistant"
    found = Conversation(
        [*system(raw.get("system")), *turns],
        tools.listed,
        thought.on,
        thought.effort,
        thought.preserve,
        goes_on,
    )
    return found, thought, tools


def ask(body: MessagesRequest, service: Service) -> tuple[Ask, Thinking]:
    body.refuse_unsupported()
    found, thought, tools = conversation(body, service)
    wanted = (body.output_config or {}).get("format")
    param = "output_config.format" if wanted is not None else "output_format"
    constraint = response_format(wanted if wanted is not None else body.output_format, param)
    stop = stops(body.stop_sequences, "stop_sequences")
    if any(not text.strip() for text in stop):
        raise invalid("stop_sequences", "expected strings with more than white space")
    asked = Ask(found, body, body.max_tokens, thought.budget, tools, constraint, param, stop)
    return asked, thought


def usage(used: Usage) -> Body:
    """The prompt is the sum of all three numbers of input."""
    return {
        "input_tokens": used.prompt - used.reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.reused,
        "output_tokens": used.completion,
        "output_tokens_details": {"thinking_tokens": used.reasoning},
    }


def signature(thought: str) -> str:
    return hashlib.sha256(thought.encode("utf-8", "replace")).hexdigest()[:32]


def ending(finished: Finished, window_reason: bool) -> Body:
    reason = REASONS[finished.reason]
    if finished.reason == "window" and window_reason:
        reason = "model_context_window_exceeded"
    stop = finished.stop if finished.reason == "string" else None
    return {"stop_reason": reason, "stop_sequence": stop}


def block(one: Block, shown: bool) -> Body:
    if isinstance(one, Reasoning):
        text = one.text if shown else ""
        return {"type": "thinking", "thinking": text, "signature": signature(one.text)}
    if isinstance(one, Called):
        found = json.loads(one.arguments or "{}")
        return {"type": "tool_use", "id": one.id, "name": one.name, "input": found}
    return {"type": "text", "text": one.text}


class MessageStream:
    """message_start, one block at a time, message_delta, message_stop; `prompt`: its tokens.

    Pings do not keep every client waiting, empty deltas of an open block do: after `open_block`
    seconds the first block is opened for them.
    """

    def __init__(
        self,
        head: Body,
        prompt: int,
        thinks: bool,
        shown: bool,
        open_block: float,
        window_reason: bool,
        request_id: str,
    ) -> None:
        self.head, self.prompt, self.thinks, self.shown = head, prompt, thinks, shown
        self.open_block, self.window_reason = open_block, window_reason
        self.request_id = request_id
        self._index = -1  # of the last block
        self._kind = ""  # of the block that is open
        self._thought = ""

    def open(self) -> bytes:
        started = {"content": [], "stop_reason": None, "stop_sequence": None}
        used = usage(Usage(self.prompt, 0, 0))
        message = {**self.head, **started, "usage": used}
        return self._event("message_start", message=message)

    def push(self, index: int, event: JobEvent) -> bytes:
        if isinstance(event, Update):
            return b"".join(self._piece(piece) for piece in event.events)
        if isinstance(event, Finished):
            out = b"" if self._index >= 0 else self._start("text")
            out += self._stop()
            delta = ending(event, self.window_reason)
            return out + self._event("message_delta", delta=delta, usage=usage(event.usage))
        return b""

    def wait(self, seconds: float) -> bytes:
        if self._kind:
            return self._delta("")
        if self._index < 0 and seconds >= self.open_block:
            return self._start("thinking" if self.thinks else "text") + self._delta("")
        return self._event("ping")

    def close(self) -> bytes:
        return self._event("message_stop")

    def fail(self, error: ApiError) -> bytes:
        return sse("error", anthropic(error, self.request_id))

    def _piece(self, piece: Event) -> bytes:
        if isinstance(piece, CallOpened):
            return self._stop() + self._start("tool_use", id=piece.id, name=piece.name, input={})
        if isinstance(piece, CallArguments):
            return self._delta(piece.json)
        if isinstance(piece, CallClosed | CallCut):
            return self._stop()
        if not piece.text:
            return b""
        kind, text = ("text", piece.text) if isinstance(piece, Text) else ("thinking", piece.text)
        out = b"" if self._kind == kind else self._stop() + self._start(kind)
        if kind == "thinking":
            self._thought += text
            text = text if self.shown else ""
        return out + self._delta(text)

    def _start(self, kind: str, **fields: Any) -> bytes:
        self._index, self._kind, self._thought = self._index + 1, kind, ""
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        content = {"type": kind, **empty.get(kind, fields)}
        return self._event("content_block_start", index=self._index, content_block=content)

    def _delta(self, text: str) -> bytes:
        names = {
            "text": ("text_delta", "text"),
            "thinking": ("thinking_delta", "thinking"),
            "tool_use": ("input_json_delta", "partial_json"),
        }
        kind, name = names[self._kind]
        delta = {"type": kind, name: text}
        return self._event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        if not self._kind:
            return b""
        out = b""
        if self._kind == "thinking":
            signed = {"type": "signature_delta", "signature": signature(self._thought)}
            out = self._event("content_block_delta", index=self._index, delta=signed)
        self._kind = ""
        return out + self._event("content_block_stop", index=self._index)

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return sse(kind, {"type": kind, **fields})


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    options = service.options

    @router.post("/v1/messages", summary="Messages")
    async def create(body: MessagesRequest, request: Request) -> Response:
        asked, thought = ask(body, service)
        prepared = await service.prepare(asked)
        head = {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": body.model or options.model,
        }
        if body.stream:
            one = prepared.requests[0]
            name = request.scope["request_id"]
            writer = MessageStream(
                head,
                len(one.ids),
                one.thinking,
                thought.shown,
                options.open_block,
                options.window_reason,
                name,
            )
            return streamed(service, [prepared], writer)

        def content(answers: Sequence[Answer]) -> Body:
            answer = answers[0]
            blocks = [block(one, thought.shown) for one in answer.blocks]
            finished = answer.finished
            return {
                **head,
                "content": blocks or [{"type": "text", "text": ""}],
                **ending(finished, options.window_reason),
                "usage": usage(finished.usage),
            }

        return await answered(service, [prepared], request, content)

    @router.post("/v1/messages/count_tokens", summary="Tokens of a prompt")
    async def count_tokens(body: CountRequest) -> Response:
        found, _, _ = conversation(body, service)
        return json_response({"input_tokens": len((await service.render(found)).ids)})

    return router
