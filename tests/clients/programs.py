"""The clients: how each is set up in a home of its own and run without a terminal.

Each sends its own prompt and all its tools, as it would to any server; only Qwen Code's 42000
tokens are cut to 23000, which a CPU reads within a minute. All print what came as lines of JSON.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.script import AGAIN, TASK, Hands

MODEL = "tr-tiny"


Line = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A command's words, those that go on with its conversation in a new process, and its
    environment beside HOME and PATH.
    """

    words: Sequence[str]
    again: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Told:
    """What a client printed: the answers' text, and how many tokens it was told were reused."""

    text: str
    reused: int


@dataclass(frozen=True)
class Program:
    """A client that posts to `endpoint`. `prepare`(url, home, folder) writes what it reads;
    `told` makes sense of the lines that it prints. `moves`: a new process tells of the date and
    of the folder elsewhere than the last one did, so that their prompts part inside.
    """

    name: str
    package: str
    command: str
    endpoint: str
    hands: Hands
    prepare: Callable[[str, Path, Path], Run]
    told: Callable[[Sequence[Line]], Told]
    moves: bool = False


def claude(url: str, home: Path, folder: Path) -> Run:
    words = ["--output-format", "stream-json", "--include-partial-messages", "--verbose"]
    words += ["--permission-mode", "bypassPermissions"]
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "x",
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # or it refuses to work as root
    }
    return Run(["-p", TASK, *words], ["-c", "-p", AGAIN, *words], environment)


def opencode(url: str, home: Path, folder: Path) -> Run:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
        "models": {MODEL: {"limit": {"context": 65536, "output": 4096}}},
    }
    config = {
        "provider": {"tr": provider},
        "model": f"tr/{MODEL}",
        "small_model": f"tr/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
    }
    (folder / "opencode.json").write_text(json.dumps(config))
    environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    words = ["run", "--format", "json"]
    return Run([*words, TASK], [*words, "-c", AGAIN], environment)


def codex(url: str, home: Path, folder: Path) -> Run:
    config = f"""
model = "{MODEL}"
model_provider = "tr"
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.tr]
name = "tr"
base_url = "{url}/v1"
wire_api = "responses"
"""
    (home / "config.toml").write_text(config)
    free = "--dangerously-bypass-approvals-and-sandbox"  # a sandbox needs rights of its own
    words = ["--json", "--skip-git-repo-check", free]
    again = ["exec", "resume", "--last", *words, AGAIN]
    return Run(["exec", *words, TASK], again, {"CODEX_HOME": str(home)})


def qwen(url: str, home: Path, folder: Path) -> Run:
    words = ["--approval-mode", "yolo", "--auth-type", "openai"]
    words += ["--output-format", "stream-json", "--include-partial-messages"]
    words += ["--system-prompt", "Use the tools.", "--core-tools", "read_file", "write_file"]
    environment = {
        "OPENAI_API_KEY": "x",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_MODEL": MODEL,
        "QWEN_TELEMETRY_ENABLED": "false",
    }
    return Run(["-p", TASK, *words], ["-c", "-p", AGAIN, *words], environment)


def messages(lines: Sequence[Line]) -> Told:
    """Claude Code and Qwen Code: Anthropic's events, and a result at the end."""
    events = [line["event"] for line in lines if line["type"] == "stream_event"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    (result,) = [line for line in lines if line["type"] == "result"]
    text = "".join(delta.get("text", "") for delta in deltas)
    return Told(text, result["usage"]["cache_read_input_tokens"])


def parts(lines: Sequence[Line]) -> Told:
    """opencode: a line for each part of an answer that is whole."""
    found = [line["part"] for line in lines]
    text = "".join(part["text"] for part in found if part["type"] == "text")
    ends = [part for part in found if part["type"] == "step-finish"]
    return Told(text, sum(part["tokens"]["cache"]["read"] for part in ends))


def items(lines: Sequence[Line]) -> Told:
    """Codex: Responses' items, and the turn's usage."""
    found = [line["item"] for line in lines if line["type"] == "item.completed"]
    text = "".join(item["text"] for item in found if item["type"] == "agent_message")
    ends = [line["usage"] for line in lines if line["type"] == "turn.completed"]
    return Told(text, sum(usage["cached_input_tokens"] for usage in ends))


def files(read: str, write: str, path: str) -> Hands:
    """Tools that take an argument `path`, and a `content` to write."""
    return Hands(
        lambda file: (read, {path: str(file)}),
        lambda file, text: (write, {path: str(file), "content": text}),
    )


SHELL = Hands(
    lambda file: ("exec_command", {"cmd": f"cat '{file}'"}),
    lambda file, text: ("exec_command", {"cmd": f"printf %s '{text}' > '{file}'; echo written"}),
)
PROGRAMS = (
    Program(
        "Claude Code",
        "@anthropic-ai/claude-code",
        "claude",
        "/v1/messages",
        files("Read", "Write", "file_path"),
        claude,
        messages,
    ),
    Program(
        "opencode",
        "opencode-ai",
        "opencode",
        "/v1/chat/completions",
        files("read", "write", "filePath"),
        opencode,
        parts,
    ),
    Program("Codex CLI", "@openai/codex", "codex", "/v1/responses", SHELL, codex, items),
    Program(
        "Qwen Code",
        "@qwen-code/qwen-code",
        "qwen",
        "/v1/chat/completions",
        files("read_file", "write_file", "file_path"),
        qwen,
        messages,
        moves=True,
    ),
)
