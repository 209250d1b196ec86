"""GET /health, /metrics and /v1/tr/state; DELETE of the latter lets go of all conversations."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from tr.serve.answer import rate
from tr.serve.job import Usage
from tr.serve.replies import json_response
from tr.serve.service import OK, Service


def last(used: Usage | None) -> dict[str, Any] | None:
    """The newest finished answer in figures."""
    if used is None:
        return None
    drafts = [
        {
            "source": use.source,
            "proposed_by_position": list(use.proposed),
            "accepted_by_position": list(use.accepted),
        }
        for use in used.drafts
    ]
    return {
        "prompt_tokens": used.prompt,
        "cached_tokens": used.reused,
        "known": used.found,
        "completion_tokens": used.completion,
        "reasoning_tokens": used.reasoning,
        "unparsed_calls": used.unparsed,
        "steps": used.steps,
        "queue_seconds": used.queue_seconds,
        "prefill_seconds": used.prefill_seconds,
        "decode_seconds": used.decode_seconds,
        "prefill_tokens_per_s": rate(used.prompt - used.reused, used.prefill_seconds),
        "tokens_per_s": rate(used.completion, used.decode_seconds),
        "tokens_per_step": rate(used.completion, used.steps),
        "drafts": drafts,
    }


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    def told() -> dict[str, Any]:
        now = service.engine.state()
        options = service.options
        sampling = {"plain": asdict(options.plain), "thinking": asdict(options.thoughtful)}
        return {
            "model": options.model,
            "healthy": service.status == OK,
            "status": service.status,
            "uptime_seconds": service.now() - service.started,
            "queue": {"waiting": now.queued, "phase": now.phase},
            "context": {"tokens": now.context, "capacity": now.capacity},
            "conversations": {
                "resident": now.conversations,
                "bytes": now.held_bytes,
                "budget_bytes": now.budget_bytes,
            },
            "requests": {
                "served": now.served,
                "failed": now.failed,
                "cancelled": now.cancelled,
            },
            "sampling": sampling,
            "last": last(now.last),
        }

    @router.get("/health", summary="Whether requests can be served")
    @router.get("/v1/health", include_in_schema=False)
    async def health() -> Response:
        status = service.status
        return json_response({"status": status}, 200 if status == OK else 503)

    @router.get("/metrics", summary="Figures for Prometheus")
    async def metrics() -> Response:
        text = service.metrics.text(service.engine.state())
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/tr/state", summary="Queue, context, conversations, the last answer")
    async def state() -> Response:
        return json_response(told())

    @router.delete("/v1/tr/state", summary="Let go of all conversations")
    async def forget() -> Response:
        service.engine.forget()
        return json_response(told())

    return router
