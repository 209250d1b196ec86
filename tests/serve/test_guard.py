"""Which addresses, names and web pages are served."""

import pytest

from tests.serve.texts import USER
from tr.serve import auth

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": USER}


def test_a_public_address_needs_a_key():
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.com"):
        with pytest.raises(ValueError, match="set api_key=KEY"):
            auth.rules(host, "")
        assert auth.rules(host, "secret").key == "secret"
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert auth.rules(host, "").hosts == auth.LOCAL


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:8000", "LOCALHOST"])
def test_own_names(world, host):
    assert world.http.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["example.com", "localhost.evil.com", "", "[", "127.0.0.1.nip.io"])
def test_other_names(world, host):
    """A site whose name was made to resolve to this machine."""
    reply = world.http.post(CHAT, json=BODY, headers={"host": host})
    assert reply.status_code == 403 and "host" in reply.json()["error"]["message"]
    reply = world.http.post("/v1/messages", json=BODY, headers={"host": host})
    assert reply.json()["error"]["type"] == "permission_error"


def test_pages_of_this_machine_may_ask(world):
    for origin in ("http://localhost:3000", "http://127.0.0.1", world.url):
        reply = world.http.post(CHAT, json=BODY, headers={"origin": origin})
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == origin
        assert "origin" in reply.headers["vary"].lower()
    asked = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,anthropic-version,x-stainless-os",
    }
    reply = world.http.options(CHAT, headers=asked)
    assert reply.status_code == 204
    allowed = reply.headers["access-control-allow-headers"]
    assert "*" in allowed and "authorization" in allowed
    assert "access-control-allow-origin" not in world.http.get("/health").headers


def test_other_pages_may_not(world, other):
    """Not even by a request for which a browser does not ask first."""
    for origin in ("https://example.com", "null", "http://localhost.evil.com", "file://"):
        headers = {"origin": origin, "content-type": "text/plain"}
        reply = world.http.post(CHAT, json=BODY, headers=headers)
        assert reply.status_code == 403 and "origin" in reply.json()["error"]["message"]
        assert "access-control-allow-origin" not in reply.headers
        assert world.http.options(CHAT, headers=headers).status_code == 403
    assert not world.engine.seen
    listed = other(auth.rules("127.0.0.1", "", origins=["https://example.com"]))
    headers = {"origin": "https://example.com"}
    assert listed.http.post(CHAT, json=BODY, headers=headers).status_code == 200


def test_preflights_and_errors_come_before_keys(other):
    http = other(auth.rules("127.0.0.1", "secret")).http
    headers = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    assert http.options(CHAT, headers=headers).status_code == 204
    refused = http.post(CHAT, json=BODY, headers=headers)
    assert refused.status_code == 401 and "access-control-allow-origin" in refused.headers
