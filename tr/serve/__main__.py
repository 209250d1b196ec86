"""OpenAI's and Anthropic's protocols on one port: python -m tr.serve [key=value ...]

Without further words it serves the embedded model to this machine alone.
"""

import importlib.util
import os
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tr import overrides
from tr.config import CheckpointWeights, Sampling, Serve, check_choice
from tr.progress import reporting

if TYPE_CHECKING:
    from tr.serve.options import Options

NEEDED = ("fastapi", "llguidance", "prometheus_client", "uvicorn")
GIB, MIB = 2**30, 2**20


def run(config: Serve) -> None:
    """Serve until SIGTERM or SIGINT; what runs then may end within `shutdown_seconds`."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} not installed; run pip install -e .")
    import torch

    from tr.assemble import assemble
    from tr.decode.session import Sessions
    from tr.serve import auth, logs
    from tr.serve.app import create_app
    from tr.serve.engine import Engine
    from tr.serve.service import Service

    key = config.api_key or os.environ.get("TR_API_KEY", "")
    rules = auth.rules(config.host, key, config.hosts, config.origins)
    chosen = options(config)
    port = bound(config.host, config.port)
    logs.set_up(config.log_level)
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    with reporting(config.progress):
        made = assemble(config)
        draft = made.draft(config)
    for warning in made.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    capacity = min(config.kv.capacity_tokens, made.shape.max_positions)
    budget = int(config.sessions_gib * GIB)
    sessions = Sessions(made.model, draft, capacity, budget)
    warmed = (chosen.plain, chosen.thoughtful) if warms(config) else ()
    engine = Engine(sessions, made.tokenizer, made.eos, config.waiting, warmed)
    service = Service(engine, made.tokenizer, chosen)
    serve(create_app(service, rules), port, config, bool(key))


def serve(app, port: socket.socket, config: Serve, keyed: bool) -> None:
    import uvicorn

    from tr.serve import server

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(greeting(port, name(config), keyed), flush=True)

    server.tune()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # raised again once all is closed
    Announced(server.settings(app, config.shutdown_seconds)).run(sockets=[port])


def bound(host: str, port: int) -> socket.socket:
    """The address is taken before weights are loaded, and listened to only after that."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, proto)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"host={host} port={port}: {reason}; choose another port=N") from error
    return found


def greeting(port: socket.socket, model: str, keyed: bool) -> str:
    host, number = port.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{number}"
    key = " -H 'authorization: Bearer '$TR_API_KEY" if keyed else ""
    body = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
    return "\n".join(
        (
            f"{model} at {url} (status page), OpenAI base URL {url}/v1, Anthropic base URL {url}",
            f"curl {url}/v1/chat/completions{key} -d '{body}'",
        )
    )


def warms(config: Serve) -> bool:
    return config.device.resolve().type == "cuda" if config.warm is None else config.warm


def name(config: Serve) -> str:
    """The model's name in answers: as it was given, or after the weights."""
    source = config.weights
    if config.name or not isinstance(source, CheckpointWeights):
        return config.name or f"tr-{config.model.name}"
    return (source.repo.rpartition("/")[2] or Path(source.path).resolve().name).lower()


def options(config: Serve) -> "Options":
    from tr.serve.options import Options
    from tr.serve.thinking import EFFORTS, Defaults

    efforts = {**EFFORTS, **config.efforts}
    check_choice("effort", config.effort, set(efforts.values()))
    return Options(
        model=name(config),
        thinking=Defaults(config.thinking, config.effort, efforts),
        plain=settings(config.sampling),
        thoughtful=settings(config.thinking_sampling),
        aliases=config.aliases,
        strict_model=config.strict_model,
        max_tokens=config.max_new_tokens,
        least_room=config.least_room,
        keep_alive=config.keep_alive_seconds,
        patience=config.reader_seconds,
        request=config.request_seconds,
        body=config.body_seconds,
        body_bytes=int(config.body_mib * MIB),
    )


def settings(chosen: Sampling):
    """A group's values; its seed is not used, each request without one draws its own."""
    from tr.serve.job import Settings

    return Settings(**asdict(chosen))


def main() -> int:
    return overrides.command("tr.serve", "serve", run)


if __name__ == "__main__":
    sys.exit(main())
