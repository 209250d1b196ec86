"""The command `python -m tr.serve`: what it refuses, what it prints, how it ends."""

import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tr.serve import __main__ as command

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def same_loggers_afterwards():
    """The command sets up logs for this process, on a stream that ends with the test."""
    loggers = [logging.getLogger(name) for name in ("tr.serve", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.parametrize(
    "args, message",
    [
        (["host=0.0.0.0"], "set api_key=KEY"),
        (["port=99999"], "port must lie in 0..65535"),
        (["prt=1"], "did you mean 'port'"),
        (["effort=extreme"], "unknown effort"),
        (["log_level=loud"], "unknown log_level"),
        (["waiting=0"], "waiting must lie in"),
        (["body_mib=0"], "body_mib must be positive"),
        (["thinking_sampling.top_p=7"], "top_p"),
        (["host=no.such.host.invalid", "api_key=k"], "host=no.such.host.invalid"),
        (["port=0", "weights=random", "device=cpu"], "weights=random has no tokenizer"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_code_2(monkeypatch, capsys, args, message):
    monkeypatch.delenv("TR_API_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["serve", *args])
    assert command.main() == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and message in err and err.count("\n") == 1


def test_a_port_that_is_taken(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["serve", f"port={port}"])
        assert command.main() == 2
        assert f"port={port}" in capsys.readouterr().err


def test_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serve", "--help"])
    assert command.main() == 0
    out = capsys.readouterr().out
    assert "tr.serve" in out and "thinking_sampling" in out and "weights" in out


def test_the_embedded_model_from_start_to_end():
    """The address is printed once it answers; SIGTERM ends it cleanly."""
    args = ["port=0", "device=cpu", "threads=1", "name=small", "aliases=[claude-small]"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "TR_API_KEY": "secret"}
    run = [sys.executable, "-m", "tr.serve", *args]
    with subprocess.Popen(run, cwd=ROOT, env=environment, **pipes) as server:
        assert server.stdout and server.stderr
        first, curl = server.stdout.readline(), server.stdout.readline()
        assert first.startswith("small at http://127.0.0.1:") and "Bearer" in curl
        assert "secret" not in first + curl
        url = first.split()[2]
        headers = {"authorization": "Bearer secret"}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
            names = [m["id"] for m in http.get("/v1/models").json()["data"]]
            assert names == ["small", "claude-small"]
            messages = [{"role": "user", "content": "Hi"}]
            body = {"messages": messages, "max_tokens": 3, "enable_thinking": False}
            reply = http.post("/v1/chat/completions", json=body).json()
            assert reply["model"] == "small" and reply["usage"]["completion_tokens"] <= 3
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=30)
        assert server.returncode == 0 and out == ""
        assert '"path": "/v1/chat/completions"' in err and "Traceback" not in err
