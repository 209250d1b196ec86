"""An application served in a thread over a socket of this machine."""

import threading
import time
from typing import Any

import uvicorn


class Running:
    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app, "127.0.0.1", 0, log_config=None, ws="none", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()
        while not self.server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not end"
