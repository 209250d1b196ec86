"""POST /tokenize, /detokenize and /apply-template: what a prompt is made of, without an answer."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from tr.serve.errors import invalid
from tr.serve.openai_chat import ChatRequest, ask
from tr.serve.replies import json_response
from tr.serve.service import Service


class TokenizeRequest(BaseModel):
    """`content` or `prompt`: a text, in which control strings are control tokens if `special`."""

    content: str | None = None
    prompt: str | None = None
    special: bool = True


class DetokenizeRequest(BaseModel):
    tokens: list[Annotated[int, Field(ge=0)]]


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    tokenizer = service.tokenizer

    @router.post("/tokenize", summary="Text to token ids")
    async def tokenize(body: TokenizeRequest) -> Response:
        text = body.content if body.content is not None else body.prompt
        if text is None:
            raise invalid("content", "expected a text; /apply-template takes messages")
        ids = await service.encode(text, body.special)
        window = service.engine.capacity
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": window})

    @router.post("/detokenize", summary="Token ids to text")
    async def detokenize(body: DetokenizeRequest) -> Response:
        wrong = next((i for i in body.tokens if i >= tokenizer.count), None)
        if wrong is not None:
            raise invalid("tokens", f"no token has the id {wrong}")
        text = await service.in_text_thread(tokenizer.decode, body.tokens)
        return json_response({"content": text, "prompt": text})

    @router.post("/apply-template", summary="A chat as the model reads it")
    async def apply_template(body: ChatRequest) -> Response:
        rendered = await service.render(ask(body, service).conversation)
        text = await service.in_text_thread(tokenizer.decode, rendered.ids)
        told: dict[str, Any] = {"prompt": text, "tokens": list(rendered.ids)}
        return json_response(told | {"count": len(rendered.ids), "marks": list(rendered.marks)})

    return router
