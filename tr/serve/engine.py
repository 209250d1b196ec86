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
from dataclasses import asdict, dataclass, replace

import torch

from tr.checkpoint.tokenizer import Tokenizer
from tr.decode.logprobs import TOP, Logprob, prompt_logprobs
from tr.decode.session import Cancelled, Sessions
from tr.decode.step import MAX_ENDS
from tr.decode.stream import Counts
from tr.model.sampling import check_bias, sampling
from tr.serve.grammar import Grammars
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
from tr.serve.rule import conditions
from tr.serve.waiting import QueueFull, Waiting

__all__ = ["Closed", "Engine", "EngineState", "Job", "QueueFull"]

IDLE = 1.0  # seconds between signs of a thread that has nothing to do
PATHS = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"()]+){2,}")
log = logging.getLogger(__name__)


class Closed(Exception):
    """The engine takes no more requests: it was closed, or its thread died."""


class Job:
    """A request on its way. `phase`: queued, prefill, decode or done."""

    def __init__(
        self, engine: "Engine", request: Request, deliver: Callable[[JobEvent], None]
    ) -> None:
        self.request, self.phase = request, "queued"
        self._engine, self._deliver = engine, deliver
        self.cancelled = threading.Event()
        self.born = time.perf_counter()
        self.usage = Usage(len(request.ids), 0, 0)

    def cancel(self) -> None:
        """Stop it between two chunks or steps, or take it out of the queue. From any thread."""
        self.cancelled.set()
        self._engine.withdraw(self)

    def tell(self, event: JobEvent) -> None:
        """A listener that fails has gone away."""
        if isinstance(event, Finished | Failed):
            self.phase = "done"
        try:
            self._deliver(event)
        except Exception:
            log.warning("a listener failed; its request is cancelled", exc_info=True)
            self.cancelled.set()


@dataclass(frozen=True)
class EngineState:
    """`phase`: idle, or the running job's; `context`: tokens that stand on the device; `beat`:
    seconds since the thread last gave a sign; `last`: of the job that finished last.
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

    `eos` end an answer. Nobody else may use `sessions` until `close`.
    """

    def __init__(
        self, sessions: Sessions, tokenizer: Tokenizer, eos: Sequence[int], waiting: int = 16
    ) -> None:
        if not 1 <= len(eos) <= MAX_ENDS:
            raise ValueError(f"eos: expected 1 .. {MAX_ENDS} end tokens, got {len(eos)}")
        self.capacity = sessions.capacity
        self._sessions, self._tokenizer, self._eos = sessions, tokenizer, tuple(eos)
        self._grammars = Grammars(tokenizer, eos)
        self._waiting: Waiting[Job] = Waiting(waiting)
        self._running: Job | None = None
        self._open, self._died, self._forget, self._stops = True, False, False, False
        self._lock = threading.Lock()  # of _open: what is put before it closes is answered
        self._withdrawn = 0  # jobs cancelled before their turn
        self._figures = EngineState(self.capacity, sessions.held.budget)
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
            phase=running.phase if running else "idle",
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
        job = Job(self, request, deliver)
        with self._lock:
            if not self._open:
                raise Closed("the engine is closed")
            self._waiting.put(job, request.side)
        return job

    def check(self, request: Request) -> None:
        """Raises ValueError naming the field that cannot be honoured; safe from any thread."""
        r, model = request, self._sessions.model
        if not r.ids:
            raise ValueError("ids: expected at least 1 token, got none")
        if wrong := [t for t in (min(r.ids), max(r.ids)) if not 0 <= t < model.ids]:
            raise ValueError(f"ids: expected 0 .. {model.ids - 1}, got {wrong[0]}")
        if len(r.ids) > self.capacity:
            raise ValueError(f"ids: {len(r.ids)} tokens exceed the window of {self.capacity}")
        for name, value, most in (
            ("max_tokens", r.max_tokens, None),
            ("min_tokens", r.min_tokens, r.max_tokens),
            ("logprobs", r.logprobs, TOP),
            ("prompt_logprobs", r.prompt_logprobs, TOP),
            ("thinking_budget", r.thinking_budget, None),
            *(("marks", mark, len(r.ids)) for mark in r.marks),
        ):
            if value is not None and (value < 0 or (most is not None and value > most)):
                limit = "at least 0" if most is None else f"0 .. {most}"
                raise ValueError(f"{name}: expected {limit}, got {value}")
        if "" in r.stop:
            raise ValueError("stop: expected strings of at least 1 character, got an empty one")
        check_bias(sampling(**asdict(r.settings)), model.ids)
        conditions(r, self._tokenizer, self._ends(r), self._grammars)

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
            reason, stop = self._answer(job)
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

    def _answer(self, job: Job) -> tuple[str, str]:
        """Read the prompt and write the answer; why it ended, and with which stop string."""
        r, sessions, began = job.request, self._sessions, time.perf_counter()
        model, eos = sessions.model, self._ends(job.request)
        job.usage = replace(job.usage, queue_seconds=began - job.born)
        job.phase = "prefill"
        rule = conditions(r, self._tokenizer, eos, self._grammars)
        settings = sampling(**asdict(r.settings), device=model.params.norm.device)
        told: list[Logprob] = []
        hear = None
        if r.prompt_logprobs is not None:
            hear = prompt_logprobs(model, torch.tensor(r.ids), r.prompt_logprobs, told)
        started = False

        def goes_on(read: int) -> bool:
            nonlocal started
            job.tell(Progress(read) if started else Started(read, len(r.ids) - read))
            if not started:
                job.usage = replace(job.usage, reused=read)
            started = True
            spent = time.perf_counter() - began
            job.usage = replace(job.usage, prefill_seconds=spent)
            self._beat()
            self._note(context=read)
            return not job.cancelled.is_set()

        turn = sessions.open(r.ids, settings, r.marks, goes_on, hear)
        began_decode = time.perf_counter()
        job.usage = replace(job.usage, prefill_seconds=began_decode - began)
        if hear is not None:
            rest = [_logprob(t, p) for t, p in zip(r.ids[1:], told, strict=True)]
            job.tell(PromptLogprobs([None, *rest]))
        if r.max_tokens == 0:
            return "length", ""
        job.phase = "decode"
        reader = Reader(
            self._tokenizer,
            r.tools,
            r.thinking,
            r.stop,
            parallel=r.parallel_tool_calls,
            raw=r.raw,
            least=r.min_tokens,
        )
        counts = Counts()
        turn.stream.top = r.logprobs
        steps = turn.answer(counts, r.max_tokens, eos, reader, job.cancelled.is_set, rule)
        for tokens in steps:
            self._beat()
            new = counts.logprobs[-len(tokens) :] if r.logprobs is not None else []
            logprobs = [_logprob(t, p) for t, p in zip(tokens, new, strict=bool(new))]
            job.tell(Update(reader.take(), tokens, logprobs))
            self._note(context=len(r.ids) + len(counts.tokens))
        cut = counts.stop in ("length", "window", "cancelled")
        if events := reader.finish(cut):
            job.tell(Update(events, ()))
        job.usage = replace(
            job.usage,
            completion=len(counts.tokens),
            reasoning=reader.reasoning_tokens,
            drafted=sum(counts.proposed) - sum(counts.refused),
            accepted=sum(counts.accepted),
            steps=counts.steps,
            drafts=uses(counts),
            decode_seconds=time.perf_counter() - began_decode,
        )
        if cut:
            return counts.stop, ""
        if reader.stop:
            return "string", reader.stop
        return "tool_calls" if reader.calls else "stop", ""

    def _ends(self, request: Request) -> tuple[int, ...]:
        return () if request.ignore_eos else self._eos

    def _beat(self) -> None:
        self._sign = time.monotonic()

    def _note(self, **figures: object) -> None:
        """Figures for `state`, made by the thread that may look."""
        held = self._sessions.held
        if "context" not in figures:
            figures |= {"conversations": len(held.all), "held_bytes": held.nbytes}
        self._figures = replace(self._figures, **figures)


def _logprob(token: int, told: Logprob) -> TokenLogprob:
    return TokenLogprob(token, told.logprob, told.top)


def uses(counts: Counts) -> tuple[DraftUse, ...]:
    """What each strategy proposed in how many steps, by a draft's place in its step."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for ran, proposed, refused, accepted in zip(
        counts.ran, counts.proposed, counts.refused, counts.accepted, strict=True
    ):
        for sums, n in zip(
            found.setdefault(ran, ([], [])), (proposed - refused, accepted), strict=True
        ):
            sums += [0] * (n - len(sums))
            for place in range(n):
                sums[place] += 1
    return tuple(
        DraftUse(ran, p, a + [0] * (len(p) - len(a))) for ran, (p, a) in found.items() if p
    )


def safe(error: Exception) -> str:
    """What may be told of a failure: no path, no traceback."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the device is out of memory"
    if isinstance(error, ValueError):
        return PATHS.sub("...", " ".join(str(error).split()))[:500]
    return f"internal error ({type(error).__name__})"
