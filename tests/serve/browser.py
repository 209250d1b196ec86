"""A headless Chromium, driven over the pipes of its own debugging protocol."""

import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
WAIT = 30  # seconds, for what must come


class Browser:
    """One page. `complaints`: errors and warnings of its console, and what it threw."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        told, heard = os.pipe(), os.pipe()

        def place() -> None:  # the browser reads descriptor 3 and writes 4
            ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (told[0], heard[1])]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [
                PROGRAM,
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",  # whoever runs tests may be root
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--hide-scrollbars",
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place,
            pass_fds=(3, 4),
        )
        os.close(told[0])
        os.close(heard[1])
        self._out, self._in = told[1], os.fdopen(heard[0], "rb")
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._count, self._session = 0, ""
        self.complaints: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        made = self.call("Target.createTarget", url="about:blank")
        self._session = self.call("Target.attachToTarget", flatten=True, **made)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answers.get(timeout=WAIT)
            if answer["id"] == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str, width: int = 1000, height: int = 900, scheme: str = "light") -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=wanted)
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, id: str) -> str:
        return self.value(f"document.getElementById({id!r})?.innerText ?? ''")

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < end, (self.value("document.body.innerText"), self.complaints)
            time.sleep(0.05)

    def picture(self, path: Path) -> bytes:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path.read_bytes()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._out)

    def _listen(self) -> None:
        rest = b""
        while piece := self._in.read1(1 << 16):  # type: ignore[attr-defined]
            *whole, rest = (rest + piece).split(b"\0")
            for one in map(json.loads, whole):
                if "id" in one:
                    self._answers.put(one)
                else:
                    self._hear(one["method"], one["params"])
        self._in.close()

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"]))
