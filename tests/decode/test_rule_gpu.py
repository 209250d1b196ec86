"""On a card: a rule and logarithms over captured steps, which are read one late without a rule."""

import pytest

from tests.decode.small import IDS
from tests.decode.test_rule import Odd
from tests.test_jit_gpu import CAPACITY, PROMPT, SETTINGS, draft, model, settings
from tr.decode.generate import speak
from tr.decode.stream import Counts, open_stream

pytestmark = pytest.mark.gpu


def say(backend: str, name: str, rule: Odd | None, **values) -> Counts:
    stream = open_stream(model(backend), draft(name), PROMPT.tolist(), settings(**values), CAPACITY)
    stream.top, counts = 4, Counts()
    for _ in speak(stream, counts, 48, rule=rule):
        pass
    return counts


@pytest.mark.parametrize("values", [*SETTINGS, {"temperature": 1.0, "seed": 2}], ids=str)
@pytest.mark.parametrize("name", ["lookup", "mtp", "dflash2"])
def test_every_step_gives_raw_decoding_s_tokens_and_logarithms(name, values):
    for rule in (False, True):
        plain = say("eager", "raw", Odd(IDS) if rule else None, **values)
        assert bool(plain.redrawn) == rule
        for backend in ("eager", "cuda_graph"):
            got = say(backend, name, Odd(IDS) if rule else None, **values)
            assert got.tokens == plain.tokens
            assert got.logprobs == plain.logprobs
