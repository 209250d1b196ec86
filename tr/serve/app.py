"""The application: every route of the four protocols, behind the guard and one kind of errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tr.serve import (
    anthropic_messages,
    models,
    openai_chat,
    openai_completions,
    openai_responses,
    page,
    state,
    texts,
)
from tr.serve.auth import Guard, Rules
from tr.serve.body import Bodies
from tr.serve.errors import ApiError, from_status, from_validation, invalid, response
from tr.serve.logs import Access
from tr.serve.service import Service

ROOMS = (
    openai_chat,
    openai_completions,
    openai_responses,
    anthropic_messages,
    models,
    texts,
    state,
    page,
)


def create_app(service: Service, rules: Rules | None = None) -> FastAPI:
    """Owns `service`, which is closed when the server ends. Default rules: this machine, no key."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="tr",
        description="OpenAI and Anthropic protocols over one model.",
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    for room in ROOMS:
        app.include_router(room.routes(service))
    options = service.options
    # The last one is the outermost.
    app.add_middleware(Bodies, limit=options.body_bytes, seconds=options.body)
    app.add_middleware(Guard, rules=rules or Rules())
    app.add_middleware(Access, count=service.metrics.count)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RecursionError, _deep)
    _document(app)
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return response(request.scope, error)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return response(request.scope, from_validation(error.errors()))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    found = from_status(error.status_code)
    found.headers = error.headers or {}
    return response(request.scope, found)


async def _deep(request: Request, error: Exception) -> Response:
    return response(request.scope, invalid("body", "nested too deeply"))


def _document(app: FastAPI) -> None:
    """The OpenAPI document tells of our own errors in place of the framework's."""
    text = "An error in the envelope of the path's protocol; its message names the field."
    told = {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}
    schema: dict[str, Any] = app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = told
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
