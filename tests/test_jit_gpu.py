"""Captured steps on a card: bits that equal eager ones, storage, inputs, and what is refused."""

import functools
import re

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kernels.registry import select
from tests.decode.small import IDS, random_draft
from tests.model.small import copy, random_mtp, random_params, random_tokens
from tr.decode.generate import generate
from tr.decode.step import Model, State, init_state, prefill
from tr.decode.stream import Counts, advance, open_stream
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.head import whole
from tr.drafts.lookup import Lookup
from tr.drafts.mtp import Mtp
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.jit import jit
from tr.model.sampling import Sampling, sampling
from tr.tree import map_tensors, tensors, tree

pytestmark = pytest.mark.gpu
CAPACITY, STEPS = 1024, 64
PROMPT = random_tokens(40).clamp(max=IDS - 1)
NAMES = ("raw", "lookup", "mtp", "dflash2")
SETTINGS = ({}, {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "seed": 5})


@tree
class Total:
    value: Float[Tensor, " d"]
    fresh: Float[Tensor, " d"]


def add(total: Total, rows: Tensor, scale: float) -> tuple[Tensor, Total]:
    """`total` is donated; one tensor is written in place, the other comes back as a new one."""
    total.value.add_((scale * rows).sum(0))
    return total.value * 2, Total(value=total.value, fresh=total.fresh + 1)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@functools.cache
def model(backend: str) -> Model:
    if backend != "eager":
        plain = model("eager")
        return Model.build(plain.params, plain.ops, IDS, backend)
    params = map_tensors(Tensor.cuda, random_params(torch.bfloat16))
    return Model.build(params, select("triton", device=torch.device("cuda")), IDS)


@functools.cache
def draft(name: str) -> Draft:
    m = model("eager")
    head = whole(m.params.head, IDS)
    if name == "mtp":
        return Mtp(map_tensors(Tensor.cuda, random_mtp(torch.bfloat16)), m.params, m.ops, 3, head)
    if name == "dflash2":
        params = map_tensors(Tensor.cuda, random_draft())
        return Dflash2(params, m.params, 7, head, params.config.window)
    return Lookup(7, 1, 3) if name == "lookup" else Raw()


def settings(**values) -> Sampling:
    return sampling(**values, device="cuda")


def start(name: str, s: Sampling) -> State:
    m, strategy = model("eager"), draft(name)
    return prefill(m, strategy, init_state(m, strategy, CAPACITY), PROMPT.cuda(), s)


def assert_same(a, b, note="") -> None:
    other = tensors(b)
    for name, x in tensors(a).items():
        assert torch.equal(x, other[name]), (note, name)


@pytest.mark.parametrize("values", SETTINGS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_replay_equals_eager_to_the_bit(name, values):
    """Results, logits and the whole state, the draft's own included, after each of 64 steps."""
    s, strategy = settings(**values), draft(name)
    a = start(name, s)
    b = copy(a)
    rows = [strategy.rows] * STEPS
    if name != "raw":
        rows[20:24] = [2, 3, 2, 4]  # other versions on the same storage
    for i, n in enumerate(rows):
        *want, a = model("eager").step(strategy, a, s, n)
        *got, b = model("cuda_graph").step(strategy, b, s, n)
        assert_same(want, got, i)
        assert_same(a, b, i)
    assert int(a.feed.pos) >= len(PROMPT) + STEPS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw", "lookup"])
@pytest.mark.parametrize("backend", ["max_autotune", "max_autotune_graph"])
def test_compiled_steps_equal_eager_to_the_bit(name, backend):
    s, strategy = settings(), draft(name)
    a = start(name, s)
    b = copy(a)
    for i in range(4):
        *want, a = model("eager").step(strategy, a, s, strategy.rows)
        *got, b = model(backend).step(strategy, b, s, strategy.rows)
        assert_same(want, got, i)
        assert_same(a, b, i)


def test_a_capture_leaves_the_state_as_it_was():
    """Warm-up and capture run the step; the state afterwards is that of the one replay."""
    total = Total(value=torch.randn(4, device="cuda"), fresh=torch.randn(4, device="cuda"))
    before = copy(total)
    call = jit(add, "cuda_graph", "total")
    rows = torch.randn(3, 4, device="cuda")
    at = total.value.data_ptr(), total.fresh.data_ptr()
    y, after = call(total, rows, 2.0)
    want, expected = add(copy(before), rows, 2.0)
    assert torch.equal(y, want)
    assert_same(after, expected)
    assert (after.value.data_ptr(), after.fresh.data_ptr()) == at


def test_inputs_are_read_anew_and_constants_make_versions():
    call, plain = jit(add, "cuda_graph", "total"), functools.partial(add)
    zeros = torch.zeros(4, device="cuda")
    a = Total(value=zeros.clone(), fresh=zeros.clone())
    b = copy(a)
    for seed, (n, scale) in enumerate([(3, 1.0), (3, 1.0), (2, 1.0), (3, 4.0), (3, 1.0)]):
        rows = torch.full((n, 4), float(seed), device="cuda")
        got, a = call(a, rows, scale)
        want, b = plain(b, rows, scale)
        assert torch.equal(got, want), seed
        assert_same(a, b, seed)


def test_two_states_at_once_do_not_meet():
    """While both are held each has storage of its own; later ones take over what was let go."""
    call = jit(add, "cuda_graph", "total")
    one, two = (Total(value=torch.zeros(2), fresh=torch.zeros(2)) for _ in range(2))
    one, two = (map_tensors(Tensor.cuda, x) for x in (one, two))
    ones = torch.ones(1, 2, device="cuda")
    for i in range(1, 4):
        _, one = call(one, ones, 1.0)
        _, two = call(two, ones, 10.0)
        assert one.value.tolist() == [i, i] and two.value.tolist() == [10 * i, 10 * i]
    at = {one.value.data_ptr(), two.value.data_ptr()}
    del one
    three = Total(value=torch.full((2,), 5.0).cuda(), fresh=torch.zeros(2).cuda())
    _, three = call(three, ones, 1.0)
    assert three.value.tolist() == [6, 6] and two.value.tolist() == [30, 30]
    assert three.value.data_ptr() in at - {two.value.data_ptr()}


def test_other_settings_need_no_other_capture():
    """Two seeds through one graph give what each gives alone."""
    m, strategy = model("cuda_graph"), draft("lookup")
    for seed in (1, 2, 1):
        s = settings(temperature=1.0, seed=seed)
        a, b = (
            generate(x, strategy, PROMPT.tolist(), s, 24, (), CAPACITY).tokens
            for x in (model("eager"), m)
        )
        assert a == b, seed


@pytest.mark.parametrize("values", SETTINGS, ids=str)
@pytest.mark.parametrize("name", [*NAMES, "oracle"])
def test_speculation_by_graphs_writes_what_raw_decoding_writes(name, values):
    s, m = settings(**values), model("cuda_graph")
    raw = generate(model("eager"), Raw(), PROMPT.tolist(), s, 80, (), 128).tokens
    if name == "oracle":
        strategy: Draft = Oracle(torch.tensor(PROMPT.tolist() + raw).cuda(), 7, 0.8)
    else:
        strategy = draft(name)
    assert generate(m, strategy, PROMPT.tolist(), s, 80, (), 128).tokens == raw
    stream = open_stream(m, strategy, PROMPT.tolist(), s, 128)
    made = [raw[0]]
    for part in (1, 2, 3, 4, 5, 6, 7, 8, 20):  # cut everywhere, then to the window's end
        made += [t for tokens in advance(stream, Counts(), part) for t in tokens]
    assert made == raw[: len(made)]


def test_a_host_read_is_named():
    def reads(total: Total, rows: Tensor) -> tuple[Tensor, Total]:
        total.value.add_(float(rows.sum()))
        return rows, total

    total = Total(value=torch.ones(2, device="cuda"), fresh=torch.ones(2, device="cuda"))
    pattern = r"jit: reads cannot be captured: it reads a value on the host.*test_jit_gpu.py:\d+"
    with pytest.raises(ValueError, match=pattern) as caught:
        jit(reads, "cuda_graph", "total")(total, torch.ones(3, 2, device="cuda"))
    assert re.search("jit=eager or jit=inductor", str(caught.value))
    assert total.value.tolist() == [1, 1]
    assert (torch.ones(2, device="cuda") * 3).sum().item() == 6  # the device is fine
