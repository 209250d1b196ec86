"""Windows that judge every token once, and nats beside those of prompt_logprobs."""

import math

import pytest
import torch

from tr.assemble import assemble
from tr.decode.logprobs import Logprob, prompt_logprobs
from tr.decode.step import init_state, read
from tr.drafts.raw import Raw
from tr.evals.perplexity import Judged, figures, nats, windows
from tr.overrides import load


@pytest.mark.parametrize("window, stride", [(8, 3), (8, 7), (4, 1), (64, 32)])
def test_every_token_but_the_first_is_judged_once(window, stride):
    for tokens in range(1, 40):
        found = list(windows(tokens, window, stride))
        judged = [i for w in found for i in range(w.scored, w.end)]
        assert judged == list(range(1, tokens))
        for place, w in enumerate(found):
            assert w.end - w.start <= window and w.start < w.scored
            assert w.start == 0 or (place and w.scored - w.start >= window - stride)


def test_strides_without_sense_are_refused():
    for stride in (0, 8, 9):
        with pytest.raises(ValueError, match="params.stride: expected 1 .. 7"):
            list(windows(10, 8, stride))


@torch.inference_mode()
def test_nats_of_a_text():
    made = assemble(load(["run=x", "model=smoke", "weights=random", "device=cpu"]), 256)
    ids = torch.randint(0, made.model.ids, (150,), generator=torch.Generator().manual_seed(0))
    whole = nats(made.model, ids.tolist(), 1)
    told: list[Logprob] = []
    state = init_state(made.model, Raw(), 256)
    read(made.model, Raw(), state, ids, 150, prompt_logprobs(made.model, ids, 0, told))
    want = torch.tensor([-one.logprob for one in told], dtype=torch.float64)
    torch.testing.assert_close(whole, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(nats(made.model, ids.tolist(), 100), whole[99:])


def test_figures_weigh_windows_by_their_size():
    found = figures([Judged(30.0, 10, 40), Judged(10.0, 10, 10)])
    assert found["perplexity"] == pytest.approx(math.exp(2))
    assert found["bits_per_byte"] == pytest.approx(40 / math.log(2) / 50)
    assert found["perplexity_low"] == pytest.approx(math.e) and found["windows"] == 2
    assert found["tokens"] == 20 and found["bytes"] == 50
    assert figures([Judged(3.0, 1, 4)])["perplexity_high"] is None
