"""The process that serves: uvicorn's settings, and defaults of Python's that slow a step."""

import gc
import sys

import uvicorn
from starlette.types import ASGIApp

SWITCH = 1e-4  # seconds that a waiting thread lets the one that runs go on


def settings(app: ASGIApp, shutdown_seconds: float, port: int = 8000) -> uvicorn.Config:
    """httptools and uvloop are used where they are installed."""
    return uvicorn.Config(
        app,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(shutdown_seconds)),
    )


def tune() -> None:
    """Once all is loaded.

    The engine's thread gives up the interpreter at every operator. Where another thread has work (a
    long prompt's text), it would wait 5 ms to get it back, at each of a step's operators. And what
    was loaded stays: no collection of garbage need look through it.
    """
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()
