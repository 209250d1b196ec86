"""The one thread that owns the device: it takes waiting requests in turn and answers each alone.

Who asks gets `JobEvent`s through a callback: Started, Progress after each chunk of the prompt,
PromptLogprobs if asked for, Updates, and Finished or Failed, behind which nothing comes. An answer
that fails costs its own state and no other's; where the device does not recover, the thread ends
and the engine says so.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tr.checkpoint.tokenizer import Tokenizer
from tr.decode.session import Cancelled, Sessions
from tr.decode.step import MAX_ENDS
from tr.serve.job import Failed, Finished, Job, JobEvent, Request, Settings, Usage
from tr.serve.turns import Turns
from tr.serve.waiting import QueueFull, Waiting
from tr.serve.warm import warm

__all__ = ["Closed", "Engine", "EngineState", "Job", "QueueFull"]

WARMING = "warming"
IDLE = 1.0  # seconds between signs of a thread that has nothing to do
PATHS = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"()]+){2,}")
log = logging.getLogger(__name__)


class Closed(Exception):
    """The engine takes no more requests: it was closed, or its thread died."""


@dataclass(frozen=True)
class EngineState:
    """`phase`: warming, idle, or the running job's; `context`: tokens that stand on the device;
    `beat`: seconds since the thread last gave a sign; `last`: of the job that finished last.
    """

    capacity: int
    budget_bytes: int
    queued: int = 0
    phase: str = "idle"
    context: int = 0
    conversations: int = 0
    held_bytes: int = 0
    last: Usage | None = None
    beat: float = 0.0
    served: int = 0
    failed: int = 0
    cancelled: int = 0


class Engine:
    """Answers requests over `sessions`, at most `waiting` of them queued; starts its thread.

    `eos` end an answer. What requests with settings like `warmed` will run is run before the first
    of them, which wait meanwhile. Nobody else may use `sessions` until `close`.
    """

    def __init__(
        self,
        sessions: Sessions,
        tokenizer: Tokenizer,
        eos: Sequence[int],
        waiting: int = 16,
        warmed: Sequence[Settings] = (),
    ) -> None:
        if not 1 <= len(eos) <= MAX_ENDS:
            raise ValueError(f"eos: expected 1 .. {MAX_ENDS} end tokens, got {len(eos)}")
        self.capacity = sessions.capacity
        self._sessions, self._warmed = sessions, warmed
        self._turns = Turns(sessions, tokenizer, eos, self._stands)
        self._waiting: Waiting[Job] = Waiting(waiting)
        self._running: Job | None = None
        self._open, self._died, self._forget, self._stops = True, False, False, False
        self._lock = threading.Lock()  # of _open: what is put before it closes is answered
        self._withdrawn = 0  # jobs cancelled before their turn
        rests = WARMING if warmed else "idle"
        self._figures = EngineState(self.capacity, sessions.held.budget, phase=rests)
        self._sign = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tr-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._died

    def state(self) -> EngineState:
        running, figures = self._running, self._figures
        return replace(
            figures,
            cancelled=figures.cancelled + self._withdrawn,
            queued=len(self._waiting),
            phase=running.phase if running else figures.phase,
            beat=time.monotonic() - self._sign,
        )

    def submit(
        self, request: Request, deliver: Callable[[JobEvent], None], checked: bool = False
    ) -> Job:
        """Queue it. `deliver` is called from the engine's thread, and from the one that cancels a
        queued job; it must not wait. `checked`: the caller has asked `check`.

        Raises ValueError as `check` does, QueueFull, and Closed.
        """
        if not checked:
            self.check(request)
        job = Job(request, deliver, self.withdraw)
        with self._lock:
            if not self._open:
                raise Closed("the engine is closed")
            self._waiting.put(job, request.side)
        return job

    def check(self, request: Request) -> None:
        """Raises ValueError naming the field that cannot be honoured; safe from any thread."""
        self._turns.check(request)

    def withdraw(self, job: Job) -> None:
        """Take a cancelled job out of the queue, if it still stands there."""
        if self._waiting.remove(job):
            with self._lock:
                self._withdrawn += 1
            waited = time.perf_counter() - job.born
            job.tell(Finished("cancelled", replace(job.usage, queue_seconds=waited)))

    def forget(self) -> None:
        """Let go of all conversations before the next job."""
        self._forget = True
        self._waiting.wake()

    def close(self, timeout: float | None = None, finish: bool = False) -> None:
        """Take no more requests, cancel those that wait and, unless `finish`, the one that runs."""
        with self._lock:
            self._open = False
        self._stops = not finish
        for job in self._waiting.clear():
            job.cancelled.set()
            job.tell(Finished("cancelled", job.usage))
        running = self._running
        if running is not None and not finish:
            running.cancel()
        self._waiting.wake()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            device = self._sessions.model.params.norm.device
            if device.type == "cuda":
                torch.cuda.set_device(device)
            if self._warmed:
                warm(self._sessions, self._warmed, lambda: self._open)
                self._note(phase="idle")
            while self._open or len(self._waiting):
                self._beat()
                self._running = self._waiting.take(IDLE)
                if self._forget:
                    self._forget = False
                    self._sessions.forget()
                    self._note()
                if self._running is not None:
                    self._serve(self._running)
                    self._running = None
        except BaseException:
            log.critical("the engine's thread died", exc_info=True)
            self._died = True
        finally:
            with self._lock:
                self._open = False
            self._end()

    def _end(self) -> None:
        """Nobody is left waiting for a thread that is gone."""
        left = [*([self._running] if self._running else []), *self._waiting.clear()]
        self._running = None
        for job in left:
            if job.phase != "done":
                job.tell(Failed("the engine stopped"))

    def _serve(self, job: Job) -> None:
        """Answer one; raises where the device is of no more use."""
        f = self._figures
        try:
            if job.cancelled.is_set() or self._stops:
                raise Cancelled
            reason, stop = self._turns.answer(job)
        except Cancelled:
            reason, stop = "cancelled", ""
        except Exception as error:
            log.exception("a request failed")
            message = safe(error)
            del error  # its frames hold tensors
            self._recover()
            self._note(failed=f.failed + 1)
            job.tell(Failed(message))
            return
        if reason == "cancelled":
            self._note(cancelled=f.cancelled + 1, last=job.usage)
        else:
            self._note(served=f.served + 1, last=job.usage)
        job.tell(Finished(reason, job.usage, stop))

    def _recover(self) -> None:
        self._sessions.drop()
        device = self._sessions.model.params.norm.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises where a kernel broke the context

    def _beat(self) -> None:
        self._sign = time.monotonic()

    def _stands(self, tokens: int) -> None:
        self._beat()
        self._note(context=tokens)

    def _note(self, **figures: object) -> None:
        """Figures for `state`, made by the thread that may look."""
        held = self._sessions.held
        if "context" not in figures:
            figures |= {"conversations": len(held.all), "held_bytes": held.nbytes}
        self._figures = replace(self._figures, **figures)


def safe(error: Exception) -> str:
    """What may be told of a failure: no path, no traceback."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the device is out of memory"
    if isinstance(error, ValueError):
        return PATHS.sub("...", " ".join(str(error).split()))[:500]
    return f"internal error ({type(error).__name__})"
