"""A prepared request as a response: a stream of events, or one JSON body."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

from tr.serve.answer import Answer, collect
from tr.serve.delivery import Prepared
from tr.serve.service import Service
from tr.serve.stream import EventStream, Writer, frames, while_connected
from tr.serve.wire import dumps


def json_response(content: Any, status: int = 200) -> Response:
    return Response(dumps(content), status, media_type="application/json")


def streamed(service: Service, prepared: Sequence[Prepared], writer: Writer) -> Response:
    """Queued here, so that a full queue is a status; given up when the client leaves."""
    options = service.options
    reply = service.submit(prepared, options.keep_alive / 2)
    sent = frames(writer, reply.events(), options.keep_alive / 2)
    return EventStream(sent, options.patience, reply.leave)


async def answered(
    service: Service,
    prepared: Sequence[Prepared],
    request: Request,
    content: Callable[[Sequence[Answer]], Any],
) -> Response:
    reply = service.submit(prepared)
    try:
        answers = await while_connected(collect(reply.events()), request.receive)
    finally:
        reply.leave()
    if answers is None:  # nobody listens
        return Response(status_code=499)
    return json_response(content(answers))
