"""Run a program under limits: python launch.py < the JSON that `execute` writes.

Its output goes nowhere; what became of it is written where standard output was. Nothing of this
project is imported here.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import types
from contextlib import suppress

LONGEST = 300  # characters of an error
PR_SET_PDEATHSIG = 1  # Linux


def limit(seconds: int, memory: int, file: int) -> None:
    """CPU time, address space, the size of a file; no core, no further process (but root's)."""
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: file,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 64,
    }
    for name, value in wanted.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(name, (value, value))


def main() -> None:
    asked = json.loads(sys.stdin.read())
    child = os.fork()  # the first process of a namespace runs no code of others: it ends them all
    if child:
        os._exit(min(255, os.waitpid(child, 0)[1]))
    with suppress(Exception):  # nor does the program outlive it elsewhere
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    reply = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    module = types.ModuleType("program")
    sys.modules["program"] = module
    sys.argv = ["program"]
    secret, source = asked.pop("secret"), asked.pop("program")
    limit(asked["seconds"], asked["memory"], asked["file"])
    error = ""
    try:
        exec(compile(source, "program.py", "exec"), module.__dict__)
    except BaseException as raised:  # SystemExit too: the tests did not come to their end
        secret, error = "", type(raised).__name__
        with suppress(BaseException):
            error = f"{error}: {raised}"[:LONGEST]
    os.write(reply, json.dumps({"secret": secret, "error": error}).encode())
    os._exit(0)  # threads of the program are not waited for


if __name__ == "__main__":
    main()
