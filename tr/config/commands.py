"""What the commands take: the groups that all of them share, and their own."""

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tr.config.choice import check_choice, check_range, unknown
from tr.config.device import Device
from tr.config.draft import Draft
from tr.config.formats import Kv, Prefill, Quant
from tr.config.kernel import Jit, Kernel
from tr.config.model import Model, Weights
from tr.config.text import Prompts, Sampling
from tr.progress import MODES

T = TypeVar("T")


@dataclass
class Run:
    """The groups that every command takes."""

    model: Model = MISSING
    weights: Weights = MISSING
    quant: Quant = MISSING
    kv: Kv = MISSING
    prefill: Prefill = MISSING
    kernel: Kernel = MISSING
    draft: Draft = MISSING
    jit: Jit = MISSING
    sampling: Sampling = MISSING
    device: Device = MISSING
    seed: int = 0
    threads: int = 0  # CPU threads; 0: torch's own choice
    progress: str = "auto"  # bars on a terminal, else quiet; or bars, quiet, json (on stderr)
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ValueError(f"threads must be 0 or more, got {self.threads}")
        check_choice("progress", self.progress, MODES)
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be positive, got {self.max_new_tokens}")


@dataclass
class Config(Run):
    """An experiment: `run` names a module of experiments/, `params` are that module's Options."""

    run: str = MISSING
    prompts: Prompts = MISSING
    params: dict[str, Any] = field(default_factory=dict)
    output: str = MISSING  # the folder of this run's files

    def options(self, schema: type[T]) -> T:
        """`params` as the plain dataclass `schema`; an unknown name or a wrong type raises."""
        names = [f.name for f in fields(schema)]  # type: ignore[arg-type]
        for key in self.params:
            if key not in names:
                raise ValueError(unknown(f"unknown key of run={self.run}: params", key, names))
        try:
            merged = OmegaConf.merge(OmegaConf.structured(schema), self.params)
            return OmegaConf.to_object(merged)  # type: ignore[return-value]
        except OmegaConfBaseException as error:
            name = getattr(error, "full_key", None)
            raise ValueError(f"params.{name}: {str(error).splitlines()[0]}") from error


@dataclass
class Generate(Run):
    """Text in, text out."""

    prompt: str = ""
    chat: bool = True  # wrap the prompt in the chat template; false: continue it as it stands
    stop: list[str] = field(default_factory=list)  # strings that end the answer, and are not shown


@dataclass
class Serve(Run):
    """OpenAI's and Anthropic's protocols on one port.

    `sampling` is for answers without a thought, `thinking_sampling` for those that begin with one,
    where a request does not say; `max_new_tokens` as well.
    """

    thinking_sampling: Sampling = MISSING
    host: str = MISSING
    port: int = MISSING  # 0: any free one
    api_key: str = ""  # or the environment variable TR_API_KEY
    hosts: list[str] = field(default_factory=list)  # Host headers beside this machine's names
    origins: list[str] = field(default_factory=list)  # web pages that may ask; "*": all
    name: str = ""  # of the model; empty: after its weights
    aliases: list[str] = field(default_factory=list)
    strict_model: bool = False  # refuse other names than these
    warm: bool | None = None  # run all once before /health says ok; null: on a GPU
    thinking: bool = True  # of OpenAI requests that say nothing
    effort: str = "medium"
    efforts: dict[str, str] = field(default_factory=dict)  # clients' words -> the template's, more
    waiting: int = MISSING  # requests in the queue
    sessions_gib: float = MISSING  # host memory for conversations
    least_room: int = MISSING  # tokens an answer must have room for
    body_mib: float = MISSING
    body_seconds: float = MISSING  # for a body to arrive
    reader_seconds: float = MISSING  # for a client to read what was sent
    request_seconds: float = MISSING  # for a whole request, its wait included
    keep_alive_seconds: float = MISSING
    shutdown_seconds: float = MISSING  # for running requests to end
    log_level: str = "info"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("port", self.port, 0, 65535)
        check_range("waiting", self.waiting, 1, 4096)
        check_choice("log_level", self.log_level, ("debug", "info", "warning", "error"))
        names = ("sessions_gib", "least_room", "body_mib", "body_seconds", "reader_seconds")
        for name in (*names, "request_seconds", "keep_alive_seconds", "shutdown_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name):g}")


CHECKS = (
    "versions",
    "device",
    "memory",
    "checkpoint",
    "operators",
    "exactness",
    "disk",
    "port",
)


@dataclass
class Doctor(Run):
    """A machine and a checkpoint looked at: `checks` (none given: all), told as a table or JSON.

    `host` and `port` are those that a server would take; `max_new_tokens` those of a text of the
    exactness check.
    """

    checks: list[str] = field(default_factory=list)
    report: str = "table"
    host: str = MISSING
    port: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.checks:
            check_choice("checks", name, CHECKS)
        check_choice("report", self.report, ("table", "json"))
        check_range("port", self.port, 0, 65535)
