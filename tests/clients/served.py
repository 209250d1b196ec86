"""A server over the embedded model whose answers a script writes, and what was asked of it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from tests.serve.running import Running
from tr import overrides
from tr.assemble import EMBEDDED, assemble
from tr.decode.session import Sessions
from tr.serve import __main__ as command
from tr.serve import engine as engines
from tr.serve.app import create_app
from tr.serve.events import Reasoning, Text
from tr.serve.job import Failed, Finished, JobEvent, Request, Update, Usage
from tr.serve.service import Service

CAPACITY = 65536  # tokens; a client's prompt of 100 kB is 50000 of this tokenizer's
POSITIONS = "max_position_embeddings"


def widened(folder: Path) -> Path:
    """The embedded checkpoint with rotary tables for CAPACITY tokens; its weights as they are."""
    for path in EMBEDDED.rglob("*"):
        to = folder / path.relative_to(EMBEDDED)
        if path.is_dir():
            to.mkdir(parents=True)
        elif path.name == "config.json":
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(json.dumps(json.loads(path.read_text()) | {POSITIONS: CAPACITY}))
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.symlink_to(path)
    return folder


@dataclass(eq=False)
class Heard:
    """A request that the engine got, and its answer."""

    request: Request
    ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: str = ""
    usage: Usage = Usage(0, 0, 0)

    def take(self, event: JobEvent) -> None:
        if isinstance(event, Update):
            self.ids += event.ids
            self.text += "".join(e.text for e in event.events if isinstance(e, Text | Reasoning))
        elif isinstance(event, Finished):
            self.reason, self.usage = event.reason, event.usage
        elif isinstance(event, Failed):
            self.reason = f"failed: {event.message}"

    @property
    def computed(self) -> int:
        return self.usage.prompt - self.usage.reused

    @property
    def system(self) -> Sequence[int]:
        return self.request.ids[: self.request.marks[0]]

    @property
    def figures(self) -> dict[str, Any]:
        used = self.usage
        return {
            "prompt": used.prompt,
            "computed": self.computed,
            "reused": used.reused,
            "written": used.completion,
            "ended": self.reason,
            "seconds": round(used.prefill_seconds + used.decode_seconds, 2),
        }


class Watched(engines.Engine):
    """Keeps what it is told of."""

    def __init__(self, *args: Any) -> None:
        self.heard: list[Heard] = []
        super().__init__(*args)

    def submit(
        self, request: Request, deliver: Callable[[JobEvent], None], checked: bool = False
    ) -> engines.Job:
        heard = Heard(request)

        def tell(event: JobEvent) -> None:
            heard.take(event)
            deliver(event)

        job = super().submit(request, tell, checked)
        self.heard.append(heard)
        return job


class Served:
    """`exchanges`: method, path, status and type of every HTTP answer, in their order."""

    def __init__(self, checkpoint: Path) -> None:
        words = [f"weights.path={checkpoint}", f"kv.capacity_tokens={CAPACITY}", "device=cpu"]
        config = overrides.load(["weights=checkpoint", *words], "serve")
        made = assemble(config)
        self.tokenizer, self.chunk = made.tokenizer, made.model.chunk
        sessions = Sessions(made.model, made.draft(config), CAPACITY, 2**30)
        self.engine = Watched(sessions, made.tokenizer, made.eos)
        app = create_app(Service(self.engine, made.tokenizer, command.options(config)))
        self.exchanges: list[tuple[str, str, int, str]] = []

        async def told(scope, receive, send):
            async def seen(message):
                if message["type"] == "http.response.start":
                    kind = Headers(raw=message["headers"]).get("content-type", "")
                    one = scope["method"], scope["path"], message["status"], kind.split(";")[0]
                    self.exchanges.append(one)
                await send(message)

            await app(scope, receive, seen if scope["type"] == "http" else send)

        self.server = Running(told)
        self.url = self.server.url

    def close(self) -> None:
        self.server.close()
