"""Run programs that a model wrote, each in a process of its own under limits of time and memory.

This is no security sandbox. A program runs as this user (as nobody, where this user is root), in a
directory of its own that is removed, and may read what this user may. Where the system lets us, it
has no network, and all its processes end with it.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LAUNCH = Path(__file__).with_name("launch.py")
FILE_BYTES = 16 << 20  # of a file that a program writes
REPLY_BYTES = 1 << 16
PASSED, FAILED, TIMED_OUT, DIED = "passed", "failed", "timed out", "died"
ALONE = ("--net", "--pid", "--fork", "--kill-child")  # a network and processes of its own
NOBODY = ("--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
READING = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
PROBE = (  # this very Python, with its library
    "import collections, functools, hashlib, heapq, math, os, random, re, sys, typing\n"
    f"assert (os.__file__, sys.version) == {(os.__file__, sys.version)!r}"
)


@dataclass(frozen=True)
class Ran:
    """`outcome`: passed, failed (an error), timed out, or died (a signal, or it left early)."""

    outcome: str
    error: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED


@dataclass(frozen=True)
class Runner:
    """How programs are run; the command `prefix` takes from them what they need not have."""

    seconds: float = 10.0
    memory_mib: int = 1024
    prefix: tuple[str, ...] = ()

    def run(self, program: str) -> Ran:
        """Whether a program comes to its end without an error."""
        secret = secrets.token_hex(16)
        asked = {
            "program": program,
            "secret": secret,
            "seconds": int(self.seconds) + 1,
            "memory": self.memory_mib << 20,
            "file": FILE_BYTES,
        }
        command = [*self.prefix, sys.executable, "-I", "-B", "-X", "utf8", str(LAUNCH)]
        with _folder() as folder, tempfile.TemporaryFile() as reply:
            environment = {
                "PATH": os.defpath,
                "HOME": folder,
                "TMPDIR": folder,
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=reply,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
            late = False
            try:
                process.communicate(json.dumps(asked).encode(), timeout=self.seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                with suppress(ProcessLookupError):  # what it started is ended as well
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            reply.seek(0)
            told = _object(reply.read(REPLY_BYTES))
        if secrets.compare_digest(str(told.get("secret")), secret):
            return Ran(PASSED)
        if "error" in told:
            return Ran(FAILED, str(told["error"]))
        if late:
            return Ran(TIMED_OUT, f"no end within {self.seconds:g} seconds")
        return Ran(DIED, f"exit code {process.returncode}")


def runner(seconds: float, memory_mib: int) -> tuple[Runner, tuple[str, ...]]:
    """The most shut off way that works here, and what the record must warn of.

    Raises RuntimeError where not even a program that imports a little runs.
    """
    if seconds <= 0 or memory_mib < 64:
        raise ValueError(
            "params.timeout_s and params.memory_mib: expected more than 0 and at least 64, got"
            f" {seconds:g} and {memory_mib}"
        )
    found = _choices()
    for prefix in found:
        probe = Runner(max(seconds, 10.0), max(memory_mib, 256), prefix)
        if probe.run(PROBE).passed:
            break
    else:
        raise RuntimeError(f"{sys.executable} cannot run {LAUNCH} under limits")
    said = []
    if not any(word in prefix for word in ALONE):
        said.append("programs could reach the network")
    if os.geteuid() == 0 and NOBODY[0] not in prefix:
        said.append("programs ran as root")
    return Runner(seconds, memory_mib, prefix), tuple(said)


def _choices() -> list[tuple[str, ...]]:
    """Prefixes, the strictest first. Who is root becomes nobody, who may read what root may where
    Python itself cannot be read otherwise.
    """
    root = os.geteuid() == 0
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    alone = [(unshare, *([] if root else ["--user"]), *ALONE)] if unshare else []
    nobody = [(setpriv, *NOBODY), (setpriv, *NOBODY, *READING)] if setpriv and root else []
    return [a + b for a in (*alone, ()) for b in (*nobody, ())]


@contextmanager
def _folder() -> Iterator[str]:
    """An empty directory that anybody may write to, removed whatever is in it."""
    folder = tempfile.mkdtemp(prefix="program-")
    try:
        os.chmod(folder, 0o777)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _object(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
