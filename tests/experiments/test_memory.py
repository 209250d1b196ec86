"""What experiments say of a card's memory, and that one part of a run leaves none to the next."""

import gc

import pytest
import torch

from experiments import memory
from experiments.long_turn import Options, conversation
from tr.assemble import assemble
from tr.decode.step import State, init_state
from tr.overrides import load

ARGS = ("+exp=long_turn", "device=cpu", "model=smoke", "weights=random", "draft=mtp", "kv=int8")


@pytest.fixture(scope="module")
def config():
    return load([*ARGS, "kernel=tile"])


@pytest.fixture(scope="module")
def made(config):
    return assemble(config, 700)


def states() -> int:
    return sum(type(x) is State for x in gc.get_objects())


def test_a_conversation_is_let_go_of(config, made):
    gc.collect()
    before = states()
    gc.disable()
    try:
        o = Options(new=3, answer=2, turns=1)
        _, kv = conversation(config, o, made, made.draft(config), 40, 200)
        assert states() > before, "sessions and turns hold each other"
        memory.release(made.model)
        assert states() == before
    finally:
        gc.enable()
    assert kv == 2 * 2 * 512 * (64 + 4)  # one layer's and the head's keys and values, with scales


def test_the_bytes_of_caches(config, made):
    state = init_state(made.model, made.draft(config), 512)
    assert memory.cache_bytes(state) == 2 * (512 + 1024) * 68  # a chain reaches past 512


def test_peaks_by_part(monkeypatch):
    assert memory.peaks(1, 2, 3) == {} or torch.cuda.is_available()
    for name, value in (
        ("is_available", True),
        ("max_memory_allocated", 10e9),
        ("max_memory_reserved", 12e9),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    found = memory.peaks(4 * 10**9, 10**9, 3 * 10**9)
    assert found == {
        "peak_gb": 10,
        "reserved_gb": 12,
        "weights_gb": 4,
        "draft_gb": 1,
        "kv_gb": 3,
        "other_gb": 2,
    }
