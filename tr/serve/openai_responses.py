"""POST /v1/responses: OpenAI's Responses, streamed and not, without stored state."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from tr.serve import thinking
from tr.serve.answer import Answer, Block, Called
from tr.serve.conversation import Conversation
from tr.serve.errors import ApiError, invalid
from tr.serve.events import CallArguments, CallClosed, CallCut, CallOpened, Event, Reasoning, Text
from tr.serve.formats import response_format
from tr.serve.job import Finished, JobEvent, Update, Usage
from tr.serve.knobs import Knobs, token_budget
from tr.serve.replies import answered, streamed
from tr.serve.responses_input import messages, seal
from tr.serve.service import Ask, Service
from tr.serve.shapes import FlatTool, Item
from tr.serve.tools import from_responses
from tr.serve.wire import comment
from tr.serve.wire import event as sse

Body = dict[str, Any]
SEALED = "reasoning.encrypted_content"
STATE = ("previous_response_id", "conversation", "prompt")  # what only a server with a store knows


class ResponsesRequest(Knobs):
    model: str = ""
    input: str | list[Item]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    background: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def ask(body: ResponsesRequest, service: Service) -> Ask:
    service.check_model(body.model)
    body.refuse_unsupported()
    raw = body.given()
    for name in STATE:
        if raw.get(name) is not None:
            raise invalid(name, "no responses are stored here; send all items in input")
    if body.background:
        raise invalid("background", "not supported by this server; leave it out")
    if body.top_logprobs:
        raise invalid("top_logprobs", "not supported here; /v1/chat/completions has it")
    thought = thinking.openai(raw, service.options.thinking)
    tools = from_responses(raw)
    turns = messages(body.instructions, body.input)
    return Ask(
        Conversation(turns, tools.listed, thought.on, thought.effort, thought.preserve),
        body,
        token_budget({"max_output_tokens": body.max_output_tokens}),
        thought.budget,
        tools,
        response_format((body.text or {}).get("format"), "text.format"),
        "text.format",
    )


def head(body: ResponsesRequest, service: Service) -> Body:
    """The response before anything of it is there."""
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": service.now(),
        "status": "in_progress",
        "model": body.model or service.options.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def usage(used: Usage) -> Body:
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.reused, "cache_write_tokens": 0},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.prompt + used.completion,
    }


def text_part(text: str) -> Body:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def item(one: Block, sealed: bool, name: str = "") -> Body:
    """A complete item; `name`: its id, where it has one already."""
    done = {"status": "completed"}
    if isinstance(one, Reasoning):
        found = {"type": "reasoning", "id": name or f"rs_{uuid4().hex}", "summary": [], **done}
        found["content"] = [{"type": "reasoning_text", "text": one.text}]
        return {**found, "encrypted_content": seal(one.text) if sealed else None}
    if isinstance(one, Called):
        found = {"type": "function_call", "id": name or f"fc_{uuid4().hex}", **done}
        return {
            **found,
            "call_id": one.id,
            "name": one.name,
            "arguments": one.arguments or "{}",
        }
    found = {"type": "message", "id": name or f"msg_{uuid4().hex}", "role": "assistant", **done}
    return {**found, "content": [text_part(one.text)]}


def ended(start: Body, finished: Finished, output: Sequence[Body], cut: bool) -> Body:
    """The whole response; `cut`: the end came inside of a call."""
    short = cut or finished.reason in ("length", "window")
    return {
        **start,
        "status": "incomplete" if short else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if short else None,
        "output": list(output),
        "usage": usage(finished.usage),
    }


class ResponseStream:
    """Items one after another, each added, filled and done; their ids never change."""

    def __init__(self, start: Body, sealed: bool) -> None:
        self.start, self.sealed = start, sealed
        self.done: list[Body] = []
        self._number = -1  # of the last event
        self._index = -1  # of the last item
        self._open: Block | None = None  # what is written
        self._name = ""
        self._cut = False
        self._finished: Finished | None = None

    def open(self) -> bytes:
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=self.start) for kind in kinds)

    def push(self, index: int, event: JobEvent) -> bytes:
        if isinstance(event, Update):
            return b"".join(self._piece(piece) for piece in event.events)
        if isinstance(event, Finished):
            self._finished = event
            return self._done()
        return b""

    def wait(self, seconds: float) -> bytes:
        return comment("keep-alive")

    def close(self) -> bytes:
        assert self._finished is not None
        whole = ended(self.start, self._finished, self.done, self._cut)
        return self._event(f"response.{whole['status']}", response=whole)

    def fail(self, error: ApiError) -> bytes:
        told = {"code": error.kind.code or error.kind.openai, "message": error.message}
        failed = {**self.start, "status": "failed", "output": self.done, "error": told}
        return self._event("response.failed", response=failed)

    def _piece(self, piece: Event) -> bytes:
        if isinstance(piece, CallOpened):
            return self._done() + self._added(Called(piece.id, piece.name, ""))
        if isinstance(piece, CallArguments):
            return self._more("function_call_arguments", piece.json)
        if isinstance(piece, CallClosed):
            return self._done()
        if isinstance(piece, CallCut):  # never done, so that nobody runs it
            self._open, self._cut = None, True
            return self._piece(Text(piece.raw))
        if not piece.text:
            return b""
        out = b""
        if not isinstance(self._open, type(piece)):
            out = self._done() + self._added(type(piece)(""))
        kind = "output_text" if isinstance(piece, Text) else "reasoning_text"
        return out + self._more(kind, piece.text)

    def _added(self, empty: Block) -> bytes:
        made = item(empty, False)
        self._open, self._name, self._index = empty, made["id"], self._index + 1
        begun = {**made, "status": "in_progress"}
        if isinstance(empty, Called):
            return self._on_item("output_item.added", item={**begun, "arguments": ""})
        parts, begun["content"] = begun["content"], []
        out = self._on_item("output_item.added", item=begun)
        return out + self._on_part("content_part.added", part=parts[0])

    def _more(self, kind: str, text: str) -> bytes:
        if isinstance(self._open, Called):
            self._open = Called(self._open.id, self._open.name, self._open.arguments + text)
            return self._on_part(f"{kind}.delta", delta=text)
        assert self._open is not None
        self._open = type(self._open)(self._open.text + text)
        more = {"logprobs": []} if kind == "output_text" else {}
        return self._on_part(f"{kind}.delta", delta=text, **more)

    def _done(self) -> bytes:
        one, self._open = self._open, None
        if one is None:
            return b""
        whole = item(one, self.sealed, self._name)
        self.done.append(whole)
        if isinstance(one, Called):
            told = {"name": one.name, "arguments": whole["arguments"]}
            out = self._on_part("function_call_arguments.done", **told)
        else:
            part = whole["content"][0]
            if isinstance(one, Text):
                out = self._on_part("output_text.done", text=one.text, logprobs=[])
            else:
                out = self._on_part("reasoning_text.done", text=one.text)
            out += self._on_part("content_part.done", part=part)
        return out + self._on_item("output_item.done", item=whole)

    def _on_item(self, kind: str, **fields: Any) -> bytes:
        return self._event(f"response.{kind}", output_index=self._index, **fields)

    def _on_part(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._name, "output_index": self._index}
        if not kind.startswith("function_call"):
            place["content_index"] = 0
        return self._event(f"response.{kind}", **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse(kind, {"type": kind, "sequence_number": self._number, **fields})


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", summary="Responses")
    @router.post("/responses", include_in_schema=False)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        prepared = await service.prepare(ask(body, service))
        start, sealed = head(body, service), SEALED in (body.include or ())
        if body.stream:
            return streamed(service, [prepared], ResponseStream(start, sealed))

        def content(answers: Sequence[Answer]) -> Body:
            answer = answers[0]
            output = [item(one, sealed) for one in answer.blocks]
            return ended(start, answer.finished, output, answer.cut)

        return await answered(service, [prepared], request, content)

    return router
