"""On a card: the host reads a step late, waits for nothing but that, and ends texts exactly."""

import pytest
import torch

from tests.decode.signs import Signs, signs
from tests.test_jit_gpu import CAPACITY, NAMES, PROMPT, SETTINGS, draft, model, settings
from tr.decode.generate import generate
from tr.decode.stream import Counts, Stream, advance, open_stream
from tr.decode.words import Words
from tr.drafts.base import Draft
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling
from tr.tree import map_tensors

pytestmark = pytest.mark.gpu
START, TOKENS = len(PROMPT), 80


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def truth(s: Sampling) -> list[int]:
    prompt = PROMPT.tolist()
    return prompt + generate(model("eager"), Raw(), prompt, s, TOKENS, (), CAPACITY).tokens


def strategy(name: str, text: list[int]) -> Draft:
    return Oracle(torch.tensor(text).cuda(), 7, 1.0) if name == "perfect" else draft(name)


def go(stream: Stream, tokens: int, *args, **named) -> tuple[list[int], Counts]:
    counts = Counts()
    made = [t for tokens in advance(stream, counts, tokens, *args, **named) for t in tokens]
    return made, counts


@pytest.mark.parametrize("values", SETTINGS, ids=str)
@pytest.mark.parametrize("name", [*NAMES, "perfect"])
def test_stops_at_every_place_of_a_block(name, values):
    """End tokens, budgets, stop strings and cancelling; what follows is what would have."""
    s, m = settings(**values), model("cuda_graph")
    text = truth(s)
    opened = open_stream(m, strategy(name, text), PROMPT.tolist(), s, CAPACITY)
    assert opened.late
    begin = map_tensors(torch.clone, opened.state)
    for p in range(1, 10):
        for kind in ("end token", "budget", "string", "cancelled"):
            opened.state, opened.seen = map_tensors(torch.clone, begin), []
            last = START + p
            if kind == "end token":
                last = text.index(text[last], START + 1)
                made, counts = go(opened, 60, (text[last],))
                assert counts.stop == "eos"
            elif kind == "budget":
                made, counts = go(opened, p)
                assert counts.stop == "length"
            elif kind == "string":
                written = signs(text[START + 1 :])
                stop = written[p - 1 : p + 1]
                last = START + 2 + written.index(stop)
                made, counts = go(opened, 60, words=Words(Signs(), [stop]))
                assert counts.stop == "string"
            else:
                asked = iter([False] * p + [True])
                made, counts = go(opened, TOKENS - 1, cancelled=lambda asked=asked: next(asked))
                assert counts.stop == "cancelled" and counts.steps == p
                last = START + len(made)
            assert made == text[START + 1 : last + 1] and opened.pos == last, (p, kind)
            rest = text[last + 1 :][:9]
            assert go(opened, 9)[0][: len(rest)] == rest, (p, kind)


@pytest.mark.parametrize("backend", ["eager", "cuda_graph"])
@pytest.mark.parametrize("values", SETTINGS, ids=str)
@pytest.mark.parametrize("name", [*NAMES, "perfect"])
def test_the_loop_waits_for_nothing_but_a_finished_step(name, values, backend):
    """Whatever would wait for the device raises, from the second step on."""
    s = settings(**values)
    text = truth(s)
    stream = open_stream(model(backend), strategy(name, text), PROMPT.tolist(), s, CAPACITY)
    counts = Counts()
    for _ in range(2):  # the first time compiles and captures
        state = map_tensors(torch.clone, stream.state)
        counts = Counts()
        steps = advance(stream, counts, 60, (999,))
        made = next(steps)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for tokens in steps:
                made += tokens
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert made == text[START + 1 :][:60] and counts.stop == "length"
        stream.state, stream.seen = state, []
