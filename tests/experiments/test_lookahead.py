"""The heads that guess further ahead: which token each answers for, and with which weight."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from experiments import lookahead
from tr.nn.formats.dense import Dense

VOCAB, HEADS, SURE = 11, 3, 40.0


@pytest.fixture
def case():
    """Heads whose answer is known: the hidden holds the one-hot ids of the tokens 2.. ahead."""
    tokens = torch.randint(0, VOCAB, (2, 21))
    ahead = [F.pad(tokens, (0, i + 2))[:, i + 2 : i + 22] for i in range(HEADS)]
    hidden = torch.cat([F.one_hot(a, VOCAB) for a in ahead], -1)[:, :-1].float()
    width = VOCAB * HEADS
    eye = torch.eye(width)
    heads = tuple(Dense(weight=eye.roll(VOCAB * i, 1), splits=(width,)) for i in range(HEADS))
    target: Any = SimpleNamespace(head=Dense(weight=SURE * eye[:VOCAB], splits=(VOCAB,)))
    return lookahead.Params(heads=heads), target, hidden, tokens


def test_head_i_answers_for_the_token_i_plus_2_ahead(case):
    params, target, hidden, tokens = case
    weight = torch.ones(tokens.shape)
    assert lookahead.loss(params, target, hidden, tokens, weight) < 1e-3
    assert lookahead.loss(params, target, hidden.roll(1, 1), tokens, weight) > 1.0


def test_tokens_of_no_weight_do_not_count(case):
    params, target, hidden, tokens = case
    weight = torch.ones(tokens.shape)
    weight[:, 12] = 0
    wrong = tokens.clone()
    wrong[:, 12] = (wrong[:, 12] + 1) % VOCAB
    assert lookahead.loss(params, target, hidden, wrong, weight) < 1e-3
    assert lookahead.loss(params, target, hidden, wrong, torch.ones(tokens.shape)) > 1.0
