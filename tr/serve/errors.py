"""What went wrong, in the envelope of the protocol that asked: the path decides.

OpenAI: {"error": {message, type, param, code}}; Anthropic: {"type": "error", "error": {type,
message}, "request_id"}. Messages name the field and never quote a prompt, a traceback or a path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from tr.serve.wire import dumps


@dataclass(frozen=True)
class Kind:
    """Status, type and code for OpenAI clients; type, and status if another, for Anthropic ones."""

    status: int
    openai: str
    code: str | None
    anthropic: str
    anthropic_status: int = 0


INVALID = Kind(400, "invalid_request_error", None, "invalid_request_error")
TOO_LONG = Kind(400, "invalid_request_error", "context_length_exceeded", "invalid_request_error")
KEY = Kind(401, "invalid_request_error", "invalid_api_key", "authentication_error")
FORBIDDEN = Kind(403, "invalid_request_error", None, "permission_error")
UNKNOWN_MODEL = Kind(404, "invalid_request_error", "model_not_found", "not_found_error")
UNKNOWN_PATH = Kind(404, "invalid_request_error", "unknown_url", "not_found_error")
METHOD = Kind(405, "invalid_request_error", None, "invalid_request_error")
SLOW_BODY = Kind(408, "invalid_request_error", "request_timeout", "invalid_request_error")
TOO_LARGE = Kind(413, "invalid_request_error", "request_too_large", "request_too_large")
FULL = Kind(429, "rate_limit_error", "rate_limit_exceeded", "overloaded_error", 529)
FAULT = Kind(500, "server_error", None, "api_error")
UNREADY = Kind(503, "server_error", None, "overloaded_error")
LATE = Kind(504, "server_error", "timeout", "timeout_error")

AGAIN = {"retry-after": "5", "x-should-retry": "true"}
NEVER = {"x-should-retry": "false"}


@dataclass(eq=False)
class ApiError(Exception):
    """`messages` of the two protocols differ only where clients look for certain words."""

    kind: Kind
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    anthropic_message: str = ""

    def __str__(self) -> str:
        return self.message


def invalid(param: str, message: str) -> ApiError:
    """A 400 whose message begins with the field's name."""
    return ApiError(INVALID, f"{param}: {message}", param)


def too_long(tokens: int, most: int) -> ApiError:
    """The prompt leaves no room: both texts are ones by which clients know to shorten it."""
    return ApiError(
        TOO_LONG,
        f"This model's maximum context length is {most} tokens. However, your messages resulted in"
        f" {tokens} tokens ({tokens} tokens > {most} maximum). Please reduce the length of the"
        " messages or completion.",
        "messages",
        anthropic_message=f"prompt is too long: {tokens} tokens > {most} maximum",
    )


def openai(error: ApiError) -> dict[str, Any]:
    kind = error.kind
    return {
        "error": {
            "message": error.message,
            "type": kind.openai,
            "param": error.param,
            "code": kind.code,
        }
    }


def anthropic(error: ApiError, request_id: str) -> dict[str, Any]:
    message = error.anthropic_message or error.message
    inner = {"type": error.kind.anthropic, "message": message}
    return {"type": "error", "error": inner, "request_id": request_id}


def is_anthropic(scope: Mapping[str, Any]) -> bool:
    """Whether the client expects Anthropic's shapes; on shared paths its version header tells."""
    if scope["path"].startswith("/v1/messages"):
        return True
    shared = scope["path"].startswith("/v1/models")
    return shared and any(name == b"anthropic-version" for name, _ in scope["headers"])


def response(scope: Mapping[str, Any], error: ApiError) -> Response:
    """The error as a response with a status."""
    kind = error.kind
    if is_anthropic(scope):
        status = kind.anthropic_status or kind.status
        content = anthropic(error, scope.get("request_id", ""))
    else:
        status, content = kind.status, openai(error)
    media = "application/json"
    return Response(dumps(content), status, dict(error.headers), media_type=media)


def from_status(status: int) -> ApiError:
    """What the router itself refused."""
    if status == 404:
        return ApiError(UNKNOWN_PATH, "unknown path; GET /openapi.json lists the ones there are")
    if status == 405:
        return ApiError(METHOD, "this path does not take this method; see the allow header")
    if status == 413:
        return ApiError(TOO_LARGE, "request body too large")
    if status < 500:
        return ApiError(INVALID, "the body could not be read: expected one JSON object in UTF-8")
    return ApiError(FAULT, "internal error")


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """One sentence over the first three fields that do not fit, without their values."""
    told, first = [], None
    for error in errors[:3]:
        path = [str(part) for part in error["loc"] if part not in ("body", "query", "path")]
        if error["type"] == "json_invalid":
            reason = error["ctx"]["error"]
            return ApiError(INVALID, f"body: malformed JSON at character {path[0]} ({reason})")
        name = ".".join(path) or "body"
        first = first or name
        told.append(f"{name}: {error['msg'][:1].lower()}{error['msg'][1:]}")
    return ApiError(INVALID, "; ".join(told), first)
