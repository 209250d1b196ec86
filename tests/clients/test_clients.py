"""Coding clients from their packages do a task over a real socket, tools and all."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from secrets import token_hex

import pytest

from tests.clients.programs import PROGRAMS, Told
from tests.clients.script import RESULT, Script
from tests.clients.served import Heard, Served, widened
from tr.serve import turns

SECONDS = 240
PINNED = json.loads((Path(__file__).parent / "package.json").read_text())["dependencies"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return widened(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def served(checkpoint):
    made = Served(checkpoint)
    yield made
    made.close()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.command)
def test_a_task_with_tools(program, commands, served, tmp_path, monkeypatch):
    """The client reads and writes a file, and new processes go on with the conversation. Each
    request costs what is new of it, whatever else the client asks between them.
    """
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    word = f"word-{token_hex(6)}"
    (folder / "source.txt").write_text(word + "\n")
    script = Script(served.tokenizer, folder, program.hands)
    rule = turns.conditions.__name__  # so that a checker sees when it moves
    monkeypatch.setattr(turns, rule, lambda request, *_: script.rule(request))
    made = program.prepare(served.url, home, folder)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1"}

    def run(*words: str) -> Told:
        done = subprocess.run(
            [commands / program.command, *words],
            cwd=folder,
            env={**environment, **made.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
        return program.told([json.loads(line) for line in done.stdout.splitlines() if line])

    version = run_version(commands / program.command)
    assert PINNED[program.package] in version
    began = time.perf_counter()
    told = run(*made.words)
    first = main_requests(served, script)
    more = [run(*made.again) for _ in range(2)]
    seconds = time.perf_counter() - began
    main = main_requests(served, script)
    record = {
        "client": program.name,
        "version": version,
        "seconds": round(seconds, 1),
        "http": [" ".join(map(str, one)) for one in served.exchanges],
        "requests": [{"main": h in main, **h.figures} for h in served.engine.heard],
        "answers": [told.text, *(one.text for one in more)],
    }
    print(json.dumps(record, indent=1))

    assert told.text.endswith(f"Both files say {word} now.")
    assert [one.text for one in more] == [f"Both files say {word} now."] * 2
    assert (folder / "copy.txt").read_text().strip() == word
    posts = {one[1:] for one in served.exchanges if one[0] == "POST"}
    assert posts == {(program.endpoint, 200, "text/event-stream")}
    assert all(status < 400 for _, _, status, _ in served.exchanges), served.exchanges
    assert [h.reason for h in main] == ["tool_calls"] * 2 + ["stop"] * 3
    assert len(first) == 3
    prompts = [served.tokenizer.decode(h.request.ids) for h in main]
    assert word not in prompts[0]
    assert word in prompts[1].rpartition(RESULT)[2]
    assert prompts[2].count(RESULT) == prompts[1].count(RESULT) + 1
    for number, (earlier, later) in enumerate(pairwise(main), 1):
        known, size = [*earlier.request.ids, *earlier.ids], len(later.request.ids)
        same = shared(known, later.request.ids)
        if number < len(first) or not program.moves:
            assert same == len(known)  # nothing of it is told anew
            assert later.computed <= size - same + served.chunk
        else:
            assert later.usage.reused >= max(m for m in later.request.marks if m <= same)
    assert told.reused == sum(h.usage.reused for h in first)
    assert served.engine.state().failed == 0


def main_requests(served: Served, script: Script) -> list[Heard]:
    """Those of the conversation that has the task and the tools."""
    name, _ = script.hands.read(script.folder)
    heard = served.engine.heard
    first = next(h for h in heard if any(tool.name == name for tool in h.request.tools))
    return [h for h in heard if h.system == first.system]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def run_version(command: Path) -> str:
    return subprocess.run([command, "--version"], capture_output=True, text=True).stdout.strip()
