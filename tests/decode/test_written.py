"""A capture runs steps and puts back what they wrote: all bytes, out of copies of a few rows."""

import contextlib
import dataclasses
import functools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.kvarn import RING, first_seen
from kernels.registry import select
from tests.decode.small import IDS, random_draft
from tests.model.small import CONFIG, copy, random_mtp, random_params, random_tokens
from tr import graph, jit
from tr.assemble import cached
from tr.decode.step import Model, State, init_state, prefill
from tr.drafts.adaptive import Adaptive, Costs
from tr.drafts.base import Draft
from tr.drafts.chain import Chain
from tr.drafts.dflash2 import Dflash2
from tr.drafts.head import whole
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.tree import map_tensors, tensors, unchecked

CAPACITY, LONG = 600, 2600
POSITIONS = 4096
PROMPTS = (1, 270)  # behind the second one a step packs a tile, where a cache has tiles
KV = ("bf16", "fp8", "int8", "int4", "kvarn")
NAMES = ("raw", "mtp", "dflash2", "copy", "adaptive")


@pytest.fixture(autouse=True)
def fast():
    with torch.inference_mode(), unchecked():
        yield


@functools.cache
def made(kv: str, device: str = "cpu") -> tuple[Model, dict[str, Draft]]:
    """A model and drafts that keep states of every kind."""

    def move(x):
        return map_tensors(lambda t: t.to(device), cached(x, kv))

    config = dataclasses.replace(CONFIG, max_positions=POSITIONS)
    params = move(random_params(torch.bfloat16, config))
    ops = select("tile" if device == "cpu" else "triton", device=torch.device(device))
    m, head = Model.build(params, ops, IDS), whole(params.head, IDS)
    mtp = Mtp(move(random_mtp(torch.bfloat16)), params, ops, 7, head)
    block = Dflash2(move(random_draft()), params, 7, head, 24)
    chain = Chain(block, 8, 1, 4, 3, 2)
    both = Adaptive(block, mtp, Costs(1.0, 1.0, 1.0, ((MAX_ROWS, 1.0),)), False, 1, 3)
    return m, dict(zip(NAMES, (Raw(), mtp, block, chain.copy, both), strict=True))


def begun(kv: str, name: str, prompt: int, capacity: int, device: str = "cpu") -> State:
    """Behind a prompt and two steps; of a long one the last step's rows count as kept."""
    m, drafts = made(kv, device)
    draft, s = drafts[name], sampling(device=device)
    ids = random_tokens(prompt, seed=3).clamp(max=IDS - 1).to(device)
    state = prefill(m, draft, init_state(m, draft, capacity), ids, s)
    for _ in range(2):
        *_, state = m.step(draft, state, s, draft.rows)
    if prompt > draft.rows:
        state.feed.count.fill_(draft.rows)
    return state


def assert_same_bytes(a: State, b: State) -> None:
    other = tensors(b)
    for name, x in tensors(a).items():
        x, y = (t.reshape(-1).view(torch.uint8) for t in (x, other[name]))
        assert torch.equal(x, y), name


@pytest.fixture
def captures(monkeypatch):
    """Stands in for a card that records calls and never runs what it recorded.

    Gives the states on which it records and the bytes of each set of copies that was made.
    """
    seen = SimpleNamespace(states=[], copied=[])

    @contextlib.contextmanager
    def recording(*_):
        before = [copy(state) for state in seen.states]
        yield
        for state, old in zip(seen.states, before, strict=True):
            for name, x in tensors(state).items():
                x.copy_(tensors(old)[name])

    def aside(views: list[Tensor]) -> list[Tensor]:
        seen.copied.append(sum(x.nbytes for x in views))
        return [x.clone() for x in views]

    stream = SimpleNamespace(wait_stream=lambda _: None)
    for name, stand_in in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: contextlib.nullcontext(),
        "graph_pool_handle": lambda: (0, 0),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "graph": recording,
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(graph, "_no_host_reads", contextlib.nullcontext)
    monkeypatch.setattr(graph, "_aside", aside)
    for module in (graph, jit):
        monkeypatch.setattr(module, "need_cuda", lambda *_: None)
    return seen


def captured(kv: str) -> Model:
    m, _ = made(kv)
    return Model.build(m.params, m.ops, IDS, "cuda_graph")


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv", KV)
def test_a_capture_leaves_every_byte_as_it_was(kv, name, prompt, captures):
    m, draft = captured(kv), made(kv)[1][name]
    state = begun(kv, name, prompt, CAPACITY)
    pos, before = int(state.feed.pos), copy(state)
    assert prompt == 1 or first_seen(pos, draft.rows)
    captures.states.append(state)
    *_, after = m.step(draft, state, sampling(), draft.rows)
    assert len(captures.copied) == 1 and after is state
    assert_same_bytes(state, before)


@pytest.mark.parametrize("kv", KV)
def test_a_capture_copies_no_more_of_a_longer_cache(kv, captures):
    """The text itself is copied, 8 bytes a token; of caches a few rows."""
    for capacity in (CAPACITY, LONG):
        state = begun(kv, "adaptive", PROMPTS[1], capacity)
        captured(kv).step(made(kv)[1]["adaptive"], state, sampling(), 16)
    small, large = captures.copied
    assert large - small == 8 * (LONG - CAPACITY)


def test_what_a_step_writes_is_copied_alone(captures):
    """One cache: 272 + 32 of its rows, less what would stand before the first."""
    state = begun("bf16", "raw", PROMPTS[1], LONG)
    caches = 2 * 2 * 32 * 2  # bytes of a row: keys and values, 2 heads of 32 dims
    other = sum(x.nbytes for n, x in tensors(state).items() if not n.endswith((".k", ".v")))
    captured("bf16").step(Raw(), state, sampling(), 1)
    first = max(0, PROMPTS[1] + 2 - MAX_ROWS - RING)
    rows = PROMPTS[1] + 2 + 2 * MAX_ROWS - first
    assert captures.copied == [other + rows * caches]


def test_storage_that_nobody_holds_is_forgotten(captures):
    m, kept = captured("bf16"), begun("bf16", "raw", 1, CAPACITY)
    gone = begun("bf16", "raw", 1, LONG)
    graphs = m.compiled.forget.__self__  # type: ignore[attr-defined]

    def places(states) -> list[int]:
        return [tensors(state)["target.layers[2].k"].data_ptr() for state in states]

    for state in (kept, gone):
        m.step(Raw(), state, sampling(), 1)
    assert places(home.tree for home in graphs.homes) == places([kept, gone])
    del gone, state
    m.forget()
    assert places(home.tree for home in graphs.homes) == places([kept])
    del kept
    m.forget()
    assert not graphs.homes and graphs.pool is None
    made("bf16")[0].forget()  # an eager step holds nothing


@pytest.mark.gpu
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv", KV[:-1])
def test_a_first_captured_step_equals_an_eager_one_to_the_byte(kv, name, prompt):
    m, drafts = made(kv, "cuda")
    draft, s = drafts[name], sampling(device="cuda")
    state = begun(kv, name, prompt, CAPACITY, "cuda")
    other = copy(state)
    *_, state = m.step(draft, state, s, draft.rows)
    fast = Model.build(m.params, m.ops, IDS, "cuda_graph")
    *_, other = fast.step(draft, other, s, draft.rows)
    assert_same_bytes(other, state)
