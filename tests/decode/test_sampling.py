"""Penalties, bias and cuts under speculation: what raw decoding with the same seed writes."""

import functools
from dataclasses import replace

import pytest
import torch

from kernels.registry import select
from tests.decode.embedded import CASES, draft, model, tokenizer
from tests.decode.scripted import Scripted, by_position
from tr.decode.generate import generate
from tr.decode.step import Model, prefill
from tr.decode.stream import Counts, advance, open_stream
from tr.drafts.base import Draft
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling, check_bias, sampling
from tr.tree import unchecked

CASE, TOKENS, CAPACITY = CASES[2], 64, 512
PENALTIES = {"presence_penalty": 1.5, "frequency_penalty": 0.3, "repetition_penalty": 1.15}
BIAS = {"logit_bias": {7: -100.0, 300: 1.5, 301: -2.0, 42: 0.5}}
EVERYTHING = {
    "temperature": 0.9, "top_k": 60, "top_p": 0.95, "min_p": 0.01, "seed": 5, **PENALTIES, **BIAS,
}  # fmt: skip
SETTINGS = {
    "everything": EVERYTHING,
    "greedy, penalties": PENALTIES,
    "presence": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5},
    "bias": {"temperature": 1.0, "seed": 2, **BIAS},
}


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@functools.cache
def raw(setting: str) -> list[int]:
    s = sampling(**SETTINGS[setting])
    return generate(model(), Raw(), CASE.prompt, s, TOKENS, capacity=CAPACITY).tokens


def strategy(name: str, setting: str) -> Draft:
    if name == "noiseless":
        return replace(draft("dflash2", CASE), noise=False)
    if name in ("oracle", "scripted", "perfect"):
        truth = torch.tensor(CASE.prompt + raw(setting))
        if name == "scripted":
            return Scripted(truth, by_position(0))
        return Oracle(truth, 7, 1.0 if name == "perfect" else 0.8, seed=5)
    return draft(name, CASE)


@pytest.mark.parametrize(
    "setting, name",
    [("everything", name) for name in ("mtp", "dflash2", "noiseless", "lookup", "scripted")]
    + [("greedy, penalties", name) for name in ("dflash2", "oracle")]
    + [("presence", "mtp"), ("bias", "perfect")],
)
def test_speculative_equals_raw(setting, name):
    s, strategy_ = sampling(**SETTINGS[setting]), strategy(name, setting)
    counts = generate(model(), strategy_, CASE.prompt, s, TOKENS, capacity=CAPACITY)
    assert counts.tokens == raw(setting)
    if name == "perfect":
        assert set(counts.accepted) == {7}


def test_every_part_changes_the_text():
    """Otherwise the comparisons above would show nothing."""
    base = raw("everything")
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"):
        s = sampling(**{key: value for key, value in EVERYTHING.items() if key != name})
        made = generate(model(), Raw(), CASE.prompt, s, 40, capacity=CAPACITY)
        assert made.tokens != base[:40], name
    assert 7 not in base


def penalised(logits: torch.Tensor, prompt: list[int], written: list[int], s: Sampling):
    """One row by the formula, token by token."""
    out = []
    for token, x in enumerate(logits[: tokenizer().count].float()):
        n = written.count(token)
        if n or token in prompt:
            x = x / s.repetition if x > 0 else x * s.repetition
        x = x - s.frequency * n
        out.append(x - s.presence if n else x)
    for token, value in zip(s.bias_ids.tolist(), s.bias, strict=True):
        if token >= 0:
            out[token] = out[token] + value
    return torch.stack(out)


@pytest.mark.parametrize("name", ["perfect", "scripted", "raw"])
def test_a_cut_block_counts_what_was_kept(name):
    """Stops after 1, 2, ... tokens, each on top of blocks that were cut before."""
    s = sampling(**EVERYTHING)
    stream = open_stream(model(), strategy(name, "everything"), CASE.prompt, s, CAPACITY)
    made = [int(stream.state.feed.anchor)]
    for part in (1, 3, 2, 7, 5, 4, 6, 1, 8, 9):
        made += [t for tokens in advance(stream, Counts(), part) for t in tokens]
    assert len(made) == 47 and made == raw("everything")[:47]


def test_a_second_prompt_starts_a_new_count():
    """What was written before it belongs to the prompt: presence and frequency forget it."""
    s, turns = sampling(**PENALTIES), []
    for name in ("raw", "dflash2"):
        stream = open_stream(model(), strategy(name, "everything"), CASE.prompt, s, CAPACITY)
        made = [int(stream.state.feed.anchor)]
        made += [t for tokens in advance(stream, Counts(), 20) for t in tokens]
        turn = torch.tensor([made[-1], *CASES[4].prompt])
        assert int(stream.state.prompt) == len(CASE.prompt)
        with torch.inference_mode():
            stream.state = prefill(model(), stream.draft, stream.state, turn, s)
        assert int(stream.state.prompt) == len(CASE.prompt) + 20 + len(turn)
        anchor = int(stream.state.feed.anchor)
        text = CASE.prompt + made[:-1] + turn.tolist()  # the same in one prompt
        again = open_stream(model(), Raw(), text, s, CAPACITY)
        assert anchor == int(again.state.feed.anchor)
        turns.append([anchor, *(t for ts in advance(stream, Counts(), 24) for t in ts)])
    assert turns[0] == turns[1]


def test_raw_decoding_by_the_formula():
    """Logits of a plain step, penalised token by token in Python, give each next token."""
    s, text = sampling(**PENALTIES, **BIAS), list(CASE.prompt)
    stream = open_stream(model(), Raw(), text, s, CAPACITY)
    written = [int(stream.state.feed.anchor)]
    with torch.inference_mode():
        for _ in range(6):
            result, logits, stream.state = model().step(Raw(), stream.state, s, 1)
            want = penalised(logits[0], text, written, s)
            assert int(result[1]) == int(want.argmax())
            written.append(int(result[1]))


def test_what_is_off_is_not_called():
    """Without penalties and bias a step has no further operator; without cuts none is looked at."""
    calls = []

    def spy(*arguments):
        calls.append(arguments)
        return select("tile").sample(*arguments)

    def never(*arguments):
        raise AssertionError("penalize")

    ops = replace(select("tile"), sample=spy, penalize=never)
    m = Model.build(model().params, ops, tokenizer().count)
    for settings, cuts in (({}, False), ({"temperature": 1.0}, False), ({"top_k": 3}, True)):
        generate(m, Raw(), CASE.prompt, sampling(**settings), 3, capacity=CAPACITY)
        assert all(arguments[8] is cuts for arguments in calls)
        calls.clear()


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"presence_penalty": 2.5}, "sampling.presence_penalty: expected -2 .. 2, got 2.5"),
        ({"frequency_penalty": -3}, "sampling.frequency_penalty: expected -2 .. 2, got -3"),
        ({"repetition_penalty": 0}, "sampling.repetition_penalty: expected above 0"),
        ({"logit_bias": {5: 101.0}}, r"sampling.logit_bias\[5\]: expected -100 .. 100, got 101"),
        ({"logit_bias": {-1: 1.0}}, "token id: expected 0 .. 2147483647, got -1"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "at most 1024 ids, got 1025"),
        ({"presence_penalty": float("nan")}, "got nan"),
    ],
    ids=str,
)
def test_settings_out_of_range(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        sampling(**settings)


def test_a_bias_outside_the_vocabulary_is_refused_before_decoding():
    s = sampling(logit_bias={tokenizer().count: 1.0})
    with pytest.raises(ValueError, match=f"token id {tokenizer().count} is not among the model's"):
        open_stream(model(), Raw(), CASE.prompt, s, CAPACITY)
    check_bias(s, tokenizer().count + 1)
    check_bias(sampling(), 1)


def test_structure_says_what_is_on():
    assert not (sampling().cuts or sampling().adjusts) and sampling().greedy
    assert sampling(1e-6).greedy and not sampling(1e-5).greedy
    for settings in ({"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.1}):
        assert sampling(**settings).cuts
    for settings in ({"presence_penalty": 1}, {"repetition_penalty": 0.9}, BIAS):
        assert sampling(**settings).adjusts
    few, many = sampling(**BIAS), sampling(logit_bias=dict.fromkeys(range(1024), 1.0))
    assert few.bias_ids.shape == many.bias_ids.shape  # one graph for both
