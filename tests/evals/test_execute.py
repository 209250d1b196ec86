"""Programs that end, err, loop, fork, fill memory or print without end."""

import os
import time
from pathlib import Path

import pytest

from tr.evals.execute import DIED, FAILED, PASSED, TIMED_OUT, Runner, runner


@pytest.fixture(scope="module")
def how() -> Runner:
    return runner(1.5, 256)[0]


@pytest.mark.parametrize(
    "program, outcome, error",
    [
        ("import math, typing, dataclasses\nassert math.sqrt(4) == 2", PASSED, ""),
        ("assert 1 == 2, 'not equal'", FAILED, "AssertionError: not equal"),
        ("x = (", FAILED, "SyntaxError"),
        ("import sys\nsys.exit(0)", FAILED, "SystemExit"),
        ("import os\nos._exit(0)", DIED, "exit code 0"),
        ("x = bytearray(10**10)", FAILED, "MemoryError"),
        ("def f(): f()\nf()", FAILED, "RecursionError"),
        ("input()", FAILED, "EOFError"),
        ("raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()", FAILED, "E"),
        ("raise Exception('x' * 10**6)", FAILED, "Exception: xxx"),
        ("import os\nopen('a', 'w').write('b')\nassert os.listdir() == ['a']", PASSED, ""),
        ("import os\nfor i in range(3, 64):\n"
         "    try: os.write(i, b'{' * 10**6)\n    except OSError: pass", DIED, ""),
    ],
)  # fmt: skip
def test_a_program_comes_to_its_end_or_not(how, program, outcome, error):
    ran = how.run(program)
    assert ran.outcome == outcome and ran.passed == (outcome == PASSED)
    assert ran.error.startswith(error) and len(ran.error) <= 300


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "while True: print('x' * 10**6)",
        "import os, time\nos.setsid()\ntime.sleep(60)",
        "import os, time\ntry:\n    while True: os.fork()\nexcept OSError: time.sleep(60)",
    ],
)
def test_one_without_an_end_is_ended_in_time(program):
    found, said = runner(1, 256)
    if "fork" in program and "programs ran as root" in said:
        pytest.skip("nothing keeps root from forking here")
    how = Runner(0.7, 256, found.prefix)
    began = time.monotonic()
    assert how.run(program).outcome == TIMED_OUT
    assert time.monotonic() - began < 10


def test_a_file_may_not_grow_without_end(how):
    program = "with open('f', 'wb') as f:\n    for _ in range(64): f.write(b'0' * 2**20)"
    assert not how.run(program).passed


def test_a_program_ends_with_its_time_without_namespaces_too():
    name = f"left{os.getpid()}"
    program = f"import os, time\nos.setsid()\nopen('/proc/self/comm', 'w').write('{name}')\n"
    assert Runner(0.7, 256).run(program + "time.sleep(60)").outcome == TIMED_OUT
    end = time.monotonic() + 20
    while (left := running(name.encode())) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def running(name: bytes) -> int:
    """Processes of that name; those that ended and are not yet waited for do not count."""
    stats = [read(path) for path in Path("/proc").glob("[0-9]*/stat")]
    states = [stat.partition(b"(" + name + b") ")[2][:1] for stat in stats]
    return sum(state not in (b"", b"Z", b"X") for state in states)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def test_nothing_is_left(how):
    before = set(os.listdir(os.environ.get("TMPDIR", "/tmp")))
    assert how.run("open('here', 'w').write('x')").passed
    left = set(os.listdir(os.environ.get("TMPDIR", "/tmp"))) - before
    assert not [name for name in left if name.startswith("program-")]


def test_limits_without_sense_are_refused():
    for seconds, memory in ((0, 256), (1, 8)):
        with pytest.raises(ValueError, match="params.timeout_s and params.memory_mib"):
            runner(seconds, memory)
