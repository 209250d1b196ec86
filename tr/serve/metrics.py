"""What Prometheus reads at /metrics. Labels are of fixed sets: no text, no model names."""

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from tr.serve.engine import EngineState
from tr.serve.errors import is_anthropic
from tr.serve.events import CallClosed, CallCut
from tr.serve.job import Finished, JobEvent, Started, Update, Usage

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STEP_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 4)
TOKENS = tuple(4**n for n in range(1, 10))


class Metrics:
    """One registry per application, so that several can live in a process."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=own)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, registry=own, buckets=buckets)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=own)

        self.requests = counter(
            "tr_requests_total", "Requests answered", "protocol", "endpoint", "status"
        )
        self.prompt = counter("tr_prompt_tokens_total", "Tokens of prompts")
        self.cached = counter("tr_cached_tokens_total", "Tokens of prompts that were known")
        self.generated = counter("tr_generated_tokens_total", "Tokens of answers")
        self.reasoning = counter("tr_reasoning_tokens_total", "Tokens of answers inside thoughts")
        self.drafted = counter("tr_draft_tokens_total", "Tokens proposed by drafts", "source")
        self.accepted = counter(
            "tr_draft_accepted_total", "Proposed tokens that were kept", "source", "position"
        )
        self.cancelled = counter("tr_cancelled_total", "Requests given up by clients", "phase")
        self.calls = counter("tr_tool_calls_total", "Tool calls in answers", "result")
        self.lookups = counter(
            "tr_prefix_lookup_total", "Prompts by how their beginning was known", "result"
        )
        self.queue = histogram("tr_queue_seconds", "Wait for the device", SECONDS)
        self.first = histogram("tr_first_token_seconds", "From request to first token", SECONDS)
        self.prefill = histogram("tr_prefill_seconds", "Reading a prompt", SECONDS)
        self.step = histogram("tr_step_seconds", "From one step to the next", STEP_SECONDS)
        self.kept = histogram("tr_accepted_per_step", "Drafted tokens kept", range(16))
        self.lengths = histogram("tr_request_prompt_tokens", "Tokens of one prompt", TOKENS)
        self.queued = gauge("tr_queue_depth", "Requests that wait")
        self.busy = gauge("tr_busy", "Whether a request is being served")
        self.conversations = gauge("tr_resident_conversations", "Conversations held")
        self.held = gauge("tr_resident_bytes", "Host bytes of conversations held")
        self.context = gauge("tr_context_fill", "Share of the window that stands on the device")

    def count(self, scope: Scope, status: int) -> None:
        """A request ended; one whose client left before an answer has status 0."""
        path = getattr(scope.get("route"), "path", "other")
        protocol = "anthropic" if is_anthropic(scope) else "openai"
        self.requests.labels(protocol, path, str(status)).inc()

    def text(self, state: EngineState) -> bytes:
        """Everything, in Prometheus' text form."""
        self.queued.set(state.queued)
        self.busy.set(state.phase != "idle")
        self.conversations.set(state.conversations)
        self.held.set(state.held_bytes)
        self.context.set(state.context / state.capacity)
        return generate_latest(self.registry)

    def used(self, usage: Usage) -> None:
        """A job ended after it was begun."""
        self.prompt.inc(usage.prompt)
        self.cached.inc(usage.reused)
        self.generated.inc(usage.completion)
        self.reasoning.inc(usage.reasoning)
        self.calls.labels("unparsed").inc(usage.unparsed)
        self.lengths.observe(usage.prompt)
        self.queue.observe(usage.queue_seconds)
        self.prefill.observe(usage.prefill_seconds)
        for use in usage.drafts:
            self.drafted.labels(use.source).inc(sum(use.proposed))
            for position, kept in enumerate(use.accepted):
                self.accepted.labels(use.source, str(position)).inc(kept)


class Watch:
    """One job's events on their way to the client, measured."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._start = time.perf_counter()
        self._last = 0.0  # when the last step came

    def see(self, event: JobEvent) -> None:
        m, now = self.metrics, time.perf_counter()
        if isinstance(event, Started):
            m.lookups.labels(event.found).inc()
        elif isinstance(event, Update):
            if self._last:
                m.step.observe(now - self._last)
                m.kept.observe(max(0, len(event.ids) - 1))
            else:
                m.first.observe(now - self._start)
            self._last = now
            for piece in event.events:
                if isinstance(piece, CallClosed | CallCut):
                    m.calls.labels("ok" if isinstance(piece, CallClosed) else "truncated").inc()
        elif isinstance(event, Finished):
            m.used(event.usage)

    def left(self, phase: str) -> None:
        """The client gave up, or ran out of time, while its job was in `phase`."""
        self.metrics.cancelled.labels(phase).inc()
