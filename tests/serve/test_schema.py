"""Requests made from the OpenAPI document, right and wrong ones: never a fault, errors in shape."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from tests.serve import order

PATHS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/models/{name}",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/health",
    "/metrics",
    "/v1/tr/state",
}
EXAMPLES = {GenerationMode.POSITIVE: 20, GenerationMode.NEGATIVE: 15}


def check(case, reply) -> None:
    assert reply.status_code < 500, (case.as_curl_command(), reply.content)
    if reply.status_code >= 400:
        body = reply.json()
        anthropic = case.path.startswith("/v1/messages")
        assert body["error"]["message"] and ("request_id" in body) == anthropic
    elif reply.headers["content-type"][0].startswith("text/event-stream"):
        assert order.frames(reply.content.decode())
    else:
        assert reply.content


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_is_a_fault(world, mode):
    document = world.http.get("/openapi.json").json()
    assert set(document["paths"]) == PATHS and "422" not in str(document["paths"])
    answered = set()
    schema = schemathesis.openapi.from_dict(document)
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        if not operation.body and mode is GenerationMode.NEGATIVE:
            continue

        @given(case=operation.as_strategy(mode))
        @settings(
            max_examples=EXAMPLES[mode] if operation.body else 3,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        def ask(case):
            reply = case.call(base_url=world.url)
            answered.add((case.operation.path, reply.status_code))
            check(case, reply)

        ask()
    if mode is GenerationMode.POSITIVE:
        assert {path for path, status in answered if status == 200} >= PATHS - {"/v1/models/{name}"}
