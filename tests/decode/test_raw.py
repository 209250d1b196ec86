"""Raw decoding against a plain statement: whole sequences, and noise keyed by each position."""

import pytest
import torch

from kernels.sample import gumbel
from tests.decode.small import IDS, model
from tests.model.small import random_tokens
from tr.decode.generate import generate
from tr.drafts.raw import Raw
from tr.model import text
from tr.model.sampling import sampling

PROMPT = random_tokens(25).clamp(max=IDS - 1)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 2**35 + 11}], ids=str)
@torch.inference_mode()
def test_each_token_follows_from_the_ones_before(settings):
    """The token at position p maximises logits / T + noise(seed, p, token), the prefill's too."""
    m, s = model(dtype=torch.float32), sampling(**settings)
    counts = generate(m, Raw(), PROMPT.tolist(), s, 40, (), 128)
    tokens = torch.cat([PROMPT, torch.tensor(counts.tokens)])
    hidden, _, _ = text.sequence(m.params, text.init_past(m.params, 1), tokens[None, :-1])
    logits = m.params.head.sequence(hidden[0])[:, :IDS]
    for p in range(len(PROMPT), len(tokens)):
        scores = logits[p - 1]
        if settings:
            noise = gumbel(s.seed, torch.tensor(p), torch.arange(IDS))
            scores = scores / settings["temperature"] + noise
        assert int(scores.argmax()) == int(tokens[p]), p
    assert counts.kept == [1] * 39 and counts.proposed == counts.accepted == [0] * 39
    assert counts.tokens_per_step == 1.0 and counts.steps == 39 and counts.stop == "length"
    assert counts.seconds > 0 and counts.prefill_seconds > 0


def test_a_prompt_longer_than_a_chunk_is_read_whole():
    """Prefill takes 512 tokens a call: the text is that of one long call, to the bit."""
    m, prompt = model(), random_tokens(700).clamp(max=IDS - 1)
    made = generate(m, Raw(), prompt.tolist(), sampling(), 8, (), 1024).tokens
    with torch.inference_mode():
        state = text.init_state(m.params, 1024, 1)
        hidden, _, state = text.prefill(m.params, state, prompt, m.ops)
        token = int(m.params.head.sequence(hidden[-1:])[0, :IDS].argmax())
        for expected in made:
            assert token == expected
            rows, state = text.step(m.params, state, torch.tensor([token]), m.ops)
            state = text.commit(state, torch.tensor(1))
            token = int(rows.logits[0, :IDS].argmax())


def test_an_answer_of_one_token_needs_no_step():
    counts = generate(model(), Raw(), PROMPT.tolist(), sampling(), 1, (), 64)
    assert len(counts.tokens) == 1 and counts.steps == 0 and counts.stop == "length"
    assert counts.tokens_per_step == 0.0
