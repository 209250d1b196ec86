"""Set up .venv for `make`, where it is missing or pyproject.toml has changed.

The first line printed says what will be fetched and how large it is. Runs on any Python 3, so
that an old one gets a message instead of a syntax error. TORCH in the environment is the
requirement for torch.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "environment.json"
ANY_TORCH = "torch>=2.11"
NEEDED = (3, 11)
EXTRAS = {"dev": 0.2, "notebooks": 0.1}  # GB beside the 0.1 of what is always needed


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def stamp():
    """What the stamp of .venv says; nothing where there is none or it is damaged."""
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def wanted(*extras):
    """What a finished environment's stamp says; one keeps the extras that it has."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    kept = sorted({*extras, *stamp().get("extras", ())})
    return {"pyproject": digest, "extras": kept, "torch": os.environ.get("TORCH", ANY_TORCH)}


def is_current(want):
    """Whether .venv serves `want`: one with more extras does, any torch serves the default."""
    have = stamp()
    if not have or not (VENV / "bin" / "python").exists():
        return False
    torch_fits = want["torch"] in (ANY_TORCH, have["torch"])
    extras_fit = set(want["extras"]) <= set(have.get("extras", ()))
    return have["pyproject"] == want["pyproject"] and extras_fit and torch_fits


def plan(uv, want):
    """One line: the tool, torch's build and size, the rest's size."""
    rest = f"other packages about {0.1 + sum(EXTRAS[e] for e in want['extras']):.1f} GB"
    tool = "uv" if uv else "pip"
    cpu, cuda = "its CPU build, about 0.2 GB", "its CUDA build, about 3 GB"
    if "+cpu" in want["torch"] or platform.system() != "Linux":
        build = cpu
    elif uv and os.environ.get("UV_TORCH_BACKEND", "auto") == "auto":
        build = cuda if shutil.which("nvidia-smi") else cpu
    elif uv:
        build = f"its {os.environ['UV_TORCH_BACKEND']} build (CPU about 0.2 GB, CUDA about 3 GB)"
    else:
        build = (
            "the build that pip finds: on Linux usually CUDA, about 3 GB, and about 0.2 GB where"
            " a CPU build is offered (with uv installed, the build that fits this machine)"
        )
    return f"Fetching into .venv with {tool}: {want['torch']}, {build}; {rest}."


def interpreter():
    """A Python that is new enough, where uv is not there to provide one."""
    if sys.version_info >= NEEDED:
        return sys.executable
    for minor in (14, 13, 12, 11):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    version = platform.python_version()
    return fail(f"{sys.executable} is Python {version}; 3.11 or newer is needed, or uv")


def create(uv):
    """A bare .venv, unless a working one is there already (an interrupted set-up goes on)."""
    if works(VENV / "bin" / "python", "import sys; assert sys.version_info >= (3, 11)"):
        if uv or works(VENV / "bin" / "python", "import pip"):
            return
    if uv:
        run(uv, "venv", "--quiet", "--clear", "--python", ">=3.11", VENV)
        return
    python = interpreter()
    if not works(python, "import ensurepip, venv"):
        fail(
            f"{python} has no ensurepip, so it cannot make an environment;"
            " on Debian and Ubuntu: apt install python3-venv; or install uv"
        )
    run(python, "-m", "venv", "--clear", VENV)


def works(python, code):
    if not shutil.which(str(python)):
        return False
    return subprocess.run([str(python), "-c", code], capture_output=True).returncode == 0


def run(*command, **environment):
    command = [str(part) for part in command]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode:
        fail(f"{' '.join(command)} failed; the lines above say why")


def main():
    want = wanted(*(name for name in EXTRAS if f"--{name}" in sys.argv[1:]))
    if is_current(want):
        print("The environment .venv is complete; nothing to fetch.", flush=True)
        return
    uv = shutil.which("uv")
    print(plan(uv, want), flush=True)
    if STAMP.exists():
        STAMP.unlink()
    create(uv)
    extras = f"[{','.join(want['extras'])}]" if want["extras"] else ""
    packages = [want["torch"], "-e", f".{extras}"]
    python = VENV / "bin" / "python"
    if uv:
        backend = os.environ.get("UV_TORCH_BACKEND", "auto")
        run(uv, "pip", "install", "--python", python, *packages, UV_TORCH_BACKEND=backend)
    else:
        run(python, "-m", "pip", "install", *packages)
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(want))
    unfinished.replace(STAMP)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
