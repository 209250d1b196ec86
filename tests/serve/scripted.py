"""An engine without a model behind the same surface: a script chooses the token ids of each step.

Ids go through the real reader. A script is a function of the request that yields the ids of one
step, or None for a piece of the prompt that was read; it may wait for anything in between.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tr.checkpoint.tokenizer import Tokenizer
from tr.serve.engine import Closed, EngineState, QueueFull
from tr.serve.job import (
    DraftUse,
    Failed,
    Finished,
    JobEvent,
    Progress,
    PromptLogprobs,
    Request,
    Started,
    TokenLogprob,
    Update,
    Usage,
)
from tr.serve.reader import Reader

Script = Callable[[Request], Iterator[list[int] | None]]


def in_steps(ids: Sequence[int], size: int) -> list[list[int]]:
    return [list(ids[start : start + size]) for start in range(0, len(ids), size)]


class Job:
    def __init__(self, engine: "Scripted", request: Request, deliver: Callable[[JobEvent], None]):
        self.engine, self.request, self.deliver = engine, request, deliver
        self.phase, self.cancelled = "queued", threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()
        self.engine.withdraw(self)


class Scripted:
    """Requests in turn, each by `script`; `seen`: all that were begun, `ended`: why each ended."""

    def __init__(self, tokenizer: Tokenizer, capacity: int = 4096, waiting: int = 3) -> None:
        self.tokenizer, self.capacity, self.waiting = tokenizer, capacity, waiting
        self.script: Script = lambda request: iter(())
        self.refuse: Callable[[Request], None] = lambda request: None
        self.reused: Callable[[Request], int] = lambda request: 0
        self.alive, self.beat = True, 0.0
        self.seen: list[Request] = []
        self.ended: list[tuple[str, str]] = []  # phase and reason
        self._jobs: list[Job] = []
        self._more: queue.Queue[bool] = queue.Queue()
        self._lock = threading.Lock()
        self._running: Job | None = None
        self._figures = EngineState(capacity, budget_bytes=2**20)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check(self, request: Request) -> None:
        self.refuse(request)

    def submit(
        self, request: Request, deliver: Callable[[JobEvent], None], checked: bool = False
    ) -> Job:
        if not checked:
            self.check(request)
        if not self.alive:
            raise Closed("the engine is closed")
        job = Job(self, request, deliver)
        with self._lock:
            if len(self._jobs) >= self.waiting:
                raise QueueFull(f"{self.waiting} requests wait already")
            self._jobs.append(job)
        self._more.put(True)
        return job

    def withdraw(self, job: Job) -> None:
        with self._lock:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
        self._end(job, "cancelled", Usage(len(job.request.ids), 0, 0))

    def state(self) -> EngineState:
        running = self._running
        phase = running.phase if running else "idle"
        return replace(self._figures, queued=len(self._jobs), phase=phase, beat=self.beat)

    def forget(self) -> None:
        self._figures = replace(self._figures, conversations=0)

    @property
    def leaving(self) -> bool:
        """Whether the job that runs was told to stop."""
        return self._running is not None and self._running.cancelled.is_set()

    def close(self, timeout: float | None = None, finish: bool = False) -> None:
        self.alive = False
        for job in list(self._jobs):
            job.cancel()
        if self._running and not finish:
            self._running.cancel()
        self._more.put(False)
        self._thread.join(timeout)

    def _run(self) -> None:
        while self._more.get():
            with self._lock:
                self._running = job = self._jobs.pop(0) if self._jobs else None
            if job is not None:
                try:
                    self._answer(job)
                except Exception:
                    self.ended.append((job.phase, "failed"))
                    job.phase = "done"
                    job.deliver(Failed("the script failed"))
                self._running = None

    def _answer(self, job: Job) -> None:
        r, began = job.request, time.perf_counter()
        self.seen.append(r)
        job.phase, reused = "prefill", self.reused(r)
        found = "append" if reused else "miss"
        job.deliver(Started(reused, len(r.ids) - reused, found))
        if r.prompt_logprobs is not None:
            told = [TokenLogprob(i, -0.5, [(i, -0.5)]) for i in r.ids[1:]]
            job.deliver(PromptLogprobs([None, *told]))
        reader = Reader(
            self.tokenizer, r.tools, r.thinking, r.stop, parallel=r.parallel_tool_calls, raw=r.raw
        )
        ids, steps, reason = [], 0, "" if r.max_tokens else "length"
        for step in self.script(r) if r.max_tokens else ():
            if job.cancelled.is_set():
                reason = "cancelled"
                break
            if step is None:
                job.deliver(Progress(len(r.ids)))
                continue
            job.phase, steps, taken = "decode", steps + 1, []
            for id in step:
                taken.append(id)
                ended = reader.push(id)
                if ended or id in self.tokenizer.eos or len(ids) + len(taken) == r.max_tokens:
                    own = ended or id in self.tokenizer.eos
                    reason = "own" if own else "length"
                    break
            ids += taken
            told = [TokenLogprob(i, -0.25, [(i, -0.25), (0, -3.0)]) for i in taken]
            logprobs = told if r.logprobs is not None else []
            job.deliver(Update(reader.take(), taken, logprobs))
            if reason:
                break
        cut = reason in ("length", "cancelled", "")
        if events := reader.finish(cut):
            job.deliver(Update(events, ()))
        if reason in ("own", ""):
            reason = "string" if reader.stop else "tool_calls" if reader.calls else "stop"
        spent = time.perf_counter() - began
        accepted = max(0, len(ids) - steps)
        usage = Usage(
            len(r.ids),
            reused,
            len(ids),
            reader.reasoning_tokens,
            drafted=2 * steps,
            accepted=accepted,
            steps=steps,
            found=found,
            unparsed=reader.unparsed,
            decode_seconds=spent,
            drafts=(DraftUse("script", (steps, steps), (min(steps, accepted), 0)),),
        )
        self._figures = replace(
            self._figures,
            last=usage,
            served=self._figures.served + 1,
            conversations=1,
            context=len(r.ids) + len(ids),
        )
        self._end(job, reason, usage, reader.stop)

    def _end(self, job: Job, reason: str, usage: Usage, stop: str = "") -> None:
        self.ended.append((job.phase, reason))
        job.phase = "done"
        job.deliver(Finished(reason, usage, stop if reason == "string" else ""))
