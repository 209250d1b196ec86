"""Folders and repositories; the hub is a local server that knows one repository."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.checkpoint.small import same
from tr.checkpoint.hub import resolve
from tr.checkpoint.load import load_target

ROOT = Path(__file__).parents[2]
COMMIT = "c" * 40


@pytest.fixture
def hub(folder, monkeypatch):
    """Serves `folder` as some/model at revision main; yields (address, paths asked for)."""
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    files["model.bin"] = b"not wanted"
    asked: list[str] = []

    def listing() -> list[dict]:
        return [
            {
                "type": "file",
                "path": name,
                "size": len(data),
                "oid": hashlib.sha1(data).hexdigest(),
            }
            for name, data in files.items()
        ]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args) -> None:
            pass

        def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            asked.append(path)
            known = ("main", COMMIT)
            if not path.removeprefix("/api/models").startswith("/some/model"):
                self.answer(b"{}", 404, X_Error_Code="RepoNotFound")
            elif path in [f"/api/models/some/model/revision/{r}" for r in known]:
                siblings = [{"rfilename": name} for name in files]
                body = {"id": "some/model", "sha": COMMIT, "siblings": siblings}
                self.answer(json.dumps(body).encode(), Content_Type="application/json")
            elif path in [f"/api/models/some/model/tree/{r}" for r in known]:
                self.answer(json.dumps(listing()).encode(), Content_Type="application/json")
            elif path.startswith("/api/"):
                self.answer(b"{}", 404, X_Error_Code="RevisionNotFound")
            else:
                data = files[path.rsplit("/", 1)[1]]
                etag = f'"{hashlib.sha1(data).hexdigest()}"'
                self.answer(data, ETag=etag, X_Repo_Commit=COMMIT)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def ask(code: str, home: Path, endpoint: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where the hub's address, which is read at import, is `endpoint`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k}
    env = {**clean, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [sys.executable, "-c", f"from tr.checkpoint.hub import resolve\n{code}"],
        env={**env, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_repository_lands_in_the_cache_and_is_not_fetched_again(hub, folder, target, tmp_path):
    endpoint, asked = hub
    first = ask("print(resolve(None, 'some/model'))", tmp_path, endpoint)
    assert first.returncode == 0, first.stderr
    path = Path(first.stdout.strip())
    assert path.is_relative_to(tmp_path) and path.name == COMMIT
    assert {p.name for p in path.iterdir()} == {p.name for p in folder.iterdir()}
    assert same(load_target(path).params, target.params)
    assert any("model.safetensors" in p for p in asked)
    assert not any("model.bin" in p for p in asked)
    assert "Fetching" in first.stderr or "%" in first.stderr  # progress
    asked.clear()
    again = ask("print(resolve(None, 'some/model', 'main'))", tmp_path, endpoint)
    assert again.stdout == first.stdout
    assert not any("/resolve/" in p for p in asked)


def test_repositories_and_revisions_that_do_not_exist(hub, tmp_path):
    code = """
for repo, revision in [("no/such", None), ("some/model", "old"), ("a/b/c", None)]:
    try:
        print(resolve(None, repo, revision))
    except ValueError as error:
        print(error)
"""
    done = ask(code, tmp_path, hub[0])
    assert done.returncode == 0, done.stderr
    missing, revision, name = done.stdout.splitlines()
    assert "no/such was not found" in missing
    assert "some/model has no revision 'old'" in revision
    assert "'a/b/c' is no repository name; use OWNER/NAME" in name


@pytest.mark.parametrize("env", [{}, {"HF_HUB_OFFLINE": "1"}], ids=["unreachable", "offline"])
def test_without_a_connection(env, tmp_path):
    code = """
try:
    resolve(None, "some/model")
except ConnectionError as error:
    print(error)
"""
    done = ask(code, tmp_path, "http://127.0.0.1:9", **env)
    assert "was not reached and some/model is not in the cache" in done.stdout, done.stderr
    assert "weights.path" in done.stdout


def test_a_local_folder_and_wrong_arguments(tmp_path):
    assert resolve(str(tmp_path), None) == tmp_path
    with pytest.raises(FileNotFoundError, match="not a folder"):
        resolve(str(tmp_path / "none"), None)
    with pytest.raises(ValueError, match="got both"):
        resolve("a", "b/c")
    with pytest.raises(ValueError, match="got neither"):
        resolve(None, None)
