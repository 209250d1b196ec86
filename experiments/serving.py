"""The server of `python -m tr.serve` inside an experiment, over a socket of this machine."""

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from tr.assemble import EMBEDDED, Assembly
from tr.checkpoint.tokenizer import Tokenizer, load_tokenizer
from tr.config import Config
from tr.decode.session import Sessions
from tr.serve.app import create_app
from tr.serve.engine import Engine
from tr.serve.options import Options
from tr.serve.server import settings, tune
from tr.serve.service import Service
from tr.serve.thinking import Defaults


@dataclass(frozen=True)
class Serving:
    engine: Engine
    tokenizer: Tokenizer
    port: int


def words(made: Assembly) -> Tokenizer:
    """The model's tokenizer; for random weights the embedded one, its further ids made up."""
    if made.text is not None:
        return made.text
    known = load_tokenizer(EMBEDDED)
    more = [f" {i}".encode() for i in range(known.count, made.model.ids)]
    return dataclasses.replace(known, pieces=[*known.pieces, *more])


@contextmanager
def serving(
    config: Config, made: Assembly, capacity: int, budget_bytes: int, waiting: int = 16
) -> Iterator[Serving]:
    """Direct answers are the default, as sampled as a request says."""
    tokenizer = words(made)
    sessions = Sessions(made.model, made.draft(config), capacity, budget_bytes)
    engine = Engine(sessions, tokenizer, made.eos or tokenizer.eos, waiting)
    options = Options("tr", Defaults(on=False), least_room=16)
    app = create_app(Service(engine, tokenizer, options))
    tune()
    server = uvicorn.Server(settings(app, port=0, shutdown_seconds=5))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        yield Serving(engine, tokenizer, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
