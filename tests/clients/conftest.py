"""The clients' packages, installed once outside the tree; skipped without npm or a network.

They run only where asked for: make clients.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PINNED = HERE / "package.json"
CACHE = "TR_CLIENTS"  # names the folder that the packages are installed into
OLDEST_NODE = 20
SECONDS = 900  # of an installation: 1.3 GB


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = "clients" in (config.option.markexpr or "")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clients)
            if not asked:
                item.add_marker(pytest.mark.skip(reason="takes minutes; run make clients"))


@pytest.fixture(scope="session")
def commands() -> Path:
    """The folder of the clients' commands, in the versions of package.json."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    node = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    if int(node.lstrip("v").split(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node {node} is older than {OLDEST_NODE}")
    folder = cache() / hashlib.sha256(PINNED.read_bytes()).hexdigest()[:12]
    if not (folder / "complete").exists():
        install(folder)
    return folder / "node_modules" / ".bin"


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE) or Path(home) / "tr-clients")


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PINNED, folder)
    words = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        made = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm install took more than {SECONDS} seconds")
    if made.returncode:
        pytest.skip(f"npm install failed: {made.stderr.strip()[:400]}")
    (folder / "complete").touch()
