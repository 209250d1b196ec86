"""What the engine does with one request: it is checked, read and answered."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from tr.checkpoint.tokenizer import Tokenizer
from tr.decode.logprobs import TOP, Logprob, prompt_logprobs
from tr.decode.session import Sessions
from tr.decode.stream import Counts
from tr.model.sampling import check_bias, sampling
from tr.serve.grammar import Grammars
from tr.serve.job import (
    DraftUse,
    Job,
    Progress,
    PromptLogprobs,
    Request,
    Started,
    TokenLogprob,
    Update,
)
from tr.serve.reader import Reader
from tr.serve.rule import Conditions, conditions


class Turns:
    """`eos` end an answer; `stands` hears how many tokens stand, after each chunk and step."""

    def __init__(
        self,
        sessions: Sessions,
        tokenizer: Tokenizer,
        eos: Sequence[int],
        stands: Callable[[int], None],
    ) -> None:
        self.sessions, self._stands = sessions, stands
        self._tokenizer, self._eos = tokenizer, tuple(eos)
        self._grammars = Grammars(tokenizer, eos)

    def check(self, request: Request) -> None:
        """Raises ValueError naming the field that cannot be honoured; safe from any thread."""
        r, model = request, self.sessions.model
        if not r.ids:
            raise ValueError("ids: expected at least 1 token, got none")
        if wrong := [t for t in (min(r.ids), max(r.ids)) if not 0 <= t < model.ids]:
            raise ValueError(f"ids: expected 0 .. {model.ids - 1}, got {wrong[0]}")
        if len(r.ids) > self.sessions.capacity:
            raise ValueError(
                f"ids: {len(r.ids)} tokens exceed the window of {self.sessions.capacity}"
            )
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
        self._conditions(r)

    def answer(self, job: Job) -> tuple[str, str]:
        """Read the prompt and write the answer; why it ended, and with which stop string."""
        r, sessions, began = job.request, self.sessions, time.perf_counter()
        job.note(queue_seconds=began - job.born)
        job.phase = "prefill"
        rule = self._conditions(r)
        model = sessions.model
        settings = sampling(**asdict(r.settings), device=model.params.norm.device)
        told: list[Logprob] = []
        hear = None
        if r.prompt_logprobs is not None:
            hear = prompt_logprobs(model, torch.tensor(r.ids), r.prompt_logprobs, told)
        started = False

        def goes_on(read: int) -> bool:
            nonlocal started
            if started:
                job.tell(Progress(read))
            else:
                started = True
                job.tell(Started(read, len(r.ids) - read, sessions.found))
                job.note(reused=read, found=sessions.found)
            job.note(prefill_seconds=time.perf_counter() - began)
            self._stands(read)
            return not job.cancelled.is_set()

        turn = sessions.open(r.ids, settings, r.marks, goes_on, hear)
        began_decode = time.perf_counter()
        job.note(prefill_seconds=began_decode - began)
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
        steps = turn.answer(counts, r.max_tokens, self._ends(r), reader, job.cancelled.is_set, rule)
        for tokens in steps:
            new = counts.logprobs[-len(tokens) :] if r.logprobs is not None else []
            logprobs = [_logprob(t, p) for t, p in zip(tokens, new, strict=bool(new))]
            job.tell(Update(reader.take(), tokens, logprobs))
            self._stands(len(r.ids) + len(counts.tokens))
        cut = counts.stop in ("length", "window", "cancelled")
        if events := reader.finish(cut):
            job.tell(Update(events, ()))
        job.note(
            completion=len(counts.tokens),
            reasoning=reader.reasoning_tokens,
            unparsed=reader.unparsed,
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

    def _conditions(self, request: Request) -> Conditions | None:
        return conditions(request, self._tokenizer, self._ends(request), self._grammars)

    def _ends(self, request: Request) -> tuple[int, ...]:
        return () if request.ignore_eos else self._eos


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
