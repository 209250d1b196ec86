"""GET /v1/models: one body that both protocols' clients read."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from tr.serve.errors import UNKNOWN_MODEL, ApiError
from tr.serve.replies import json_response
from tr.serve.service import Service


def card(name: str, service: Service) -> dict[str, Any]:
    window = service.engine.capacity
    made = datetime.fromtimestamp(service.started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": service.started,
        "created_at": made,
        "owned_by": "tr",
        "max_model_len": window,
        "context_length": window,
        "max_input_tokens": window,
        "max_tokens": min(window, service.options.max_tokens),
    }


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    names = (service.options.model, *service.options.aliases)

    @router.get("/v1/models", summary="Models")
    @router.get("/models", include_in_schema=False)
    async def listed() -> Response:
        return json_response(
            {
                "object": "list",
                "data": [card(name, service) for name in names],
                "has_more": False,
                "first_id": names[0],
                "last_id": names[-1],
            }
        )

    @router.get("/v1/models/{name:path}", summary="One model")
    async def one(name: str) -> Response:
        if name not in names:
            known = ", ".join(names)
            raise ApiError(UNKNOWN_MODEL, f"model: expected one of {known}", "model")
        return json_response(card(name, service))

    return router
