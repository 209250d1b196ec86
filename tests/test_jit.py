"""The door to compilation: what it refuses, checks and keeps, and bits that equal eager ones."""

import shutil

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from kernels.registry import select
from tests.decode.small import IDS, dflash2_draft, model, mtp_draft
from tests.model.small import copy, prefilled, random_params, random_tokens
from tr import jit as module
from tr.decode.generate import generate
from tr.decode.step import Model, init_state, keep, prefill
from tr.drafts.lookup import Lookup
from tr.drafts.raw import Raw
from tr.jit import GRAPHS, PLANNED, fused, jit, unwrap
from tr.model import text
from tr.model.sampling import sampling
from tr.tree import tensors, tree, typed

PROMPT = random_tokens(30).clamp(max=IDS - 1)
COMPILER = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
INDUCTOR = pytest.mark.skipif(COMPILER is None, reason="Inductor needs a C++ compiler on a CPU")


@tree
class Total:
    value: Float[Tensor, " d"]


@typed
def add(total: Total, rows: Float[Tensor, "rows d"]) -> tuple[Float[Tensor, " d"], Total]:
    """`total` is donated."""
    total.value.add_((2 * rows).sum(0))
    return total.value * 1, total


@typed
def shrink(rows: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
    return rows[:, :-1]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.inference_mode():
        yield


def test_backends_that_are_refused():
    names = "eager, inductor, max_autotune, cuda_graph or max_autotune_graph"
    for name in PLANNED:
        with pytest.raises(ValueError, match=f"{name} is not built yet; use {names}"):
            jit(add, name)
    with pytest.raises(ValueError, match=f"expected {names}, got 'indcutor'"):
        jit(add, "indcutor")


@pytest.mark.parametrize("backend", GRAPHS)
def test_graphs_are_refused_on_a_cpu(backend):
    """When the device is known: at once; otherwise by the first call."""
    message = f"{backend} captures CUDA graphs, .* on cpu; use jit=eager, jit=inductor or"
    with pytest.raises(ValueError, match=message):
        jit(add, backend, "total", device=torch.device("cpu"))
    with pytest.raises(ValueError, match=message):
        jit(add, backend, "total")(Total(value=torch.zeros(4)), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=message):
        Model.build(random_params(torch.bfloat16), select("tile"), IDS, backend)


@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=[INDUCTOR, pytest.mark.slow])]
)
def test_more_than_eight_row_counts(backend):
    """Each has a version of its own, all write the one state, and none is made twice."""
    call, total = jit(add, backend), Total(value=torch.zeros(4))
    at, want = total.value.data_ptr(), torch.zeros(4)
    stats = torch._dynamo.utils.counters["stats"]  # the process's: other tests compile too
    before = stats["unique_graphs"]
    for rows in (*range(1, 10), 1, 5, 9):
        x = torch.arange(rows * 4.0).view(rows, 4)
        want = want + 2 * x.sum(0)
        y, total = call(total, x)
        assert torch.equal(y, want) and torch.equal(total.value, want)
        assert total.value.data_ptr() == at
    if backend == "inductor":
        assert stats["unique_graphs"] - before == 9


def test_the_number_of_versions_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_SHAPES", 3)
    call, total = jit(add, "eager"), Total(value=torch.zeros(4))
    for rows in (1, 2, 3, 1, 2):
        call(total, torch.zeros(rows, 4))
    with pytest.raises(ValueError, match="jit: add was called with more than 3 sets of shapes"):
        call(total, torch.zeros(4, 4))


def test_the_first_call_of_a_version_is_checked():
    call, total = jit(add, "eager"), Total(value=torch.zeros(4))
    for _ in range(2):  # a call that failed leaves nothing behind that would let it pass
        with pytest.raises(TypeCheckError, match="add"):
            call(total, torch.zeros(2, 4, 1))
        with pytest.raises(TypeCheckError, match="add"):
            call(total, torch.zeros(2, 4, dtype=torch.int64))
    assert call.__name__ == "add" and call.__doc__ == add.__doc__
    with pytest.raises(TypeCheckError):
        jit(shrink)(torch.zeros(2, 3))


def test_later_calls_are_not_checked():
    """Neither the function's annotations nor those of what it calls."""
    looked = []

    @typed
    def inner(rows: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
        looked.append(len(rows))
        return rows if len(looked) == 1 else rows[:1]  # a wrong shape from the second call on

    call = jit(lambda rows: inner(rows))
    assert call(torch.zeros(2, 3)).shape == (2, 3)
    assert call(torch.zeros(2, 3)).shape == (1, 3)
    with pytest.raises(TypeCheckError):
        call(torch.zeros(5, 3))  # another version: its first call


def test_fused_is_the_plain_function_on_a_cpu():
    calls = []

    def double(x: Tensor) -> Tensor:
        calls.append(torch.compiler.is_compiling())
        return 2 * x

    assert torch.equal(fused(double)(torch.ones(3)), torch.full((3,), 2.0))
    assert calls == [False] and unwrap(fused(double)) is double


@INDUCTOR
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["tile", "reference"])
def test_an_inductor_step_equals_eager_to_the_bit(variant):
    """Four steps of a small random model: logits, hiddens, taps and the whole state."""
    params, ops = random_params(torch.bfloat16), select(variant)
    start = prefilled(params, random_tokens(30))
    eager, compiled = copy(start), copy(start)
    plain, fast = jit(text.step, "eager"), jit(text.step, "inductor")
    for i, (rows, kept) in enumerate(((1, 1), (4, 2), (8, 8), (4, 4))):
        tokens = random_tokens(rows, seed=i)
        want, eager = plain(params, eager, tokens, ops, (0, 2))
        got, compiled = fast(params, compiled, tokens, ops, (0, 2))
        for name, t in (tensors(got) | tensors(compiled)).items():
            assert torch.equal(t, (tensors(want) | tensors(eager))[name]), (i, name)
        eager, compiled = (text.commit(s, torch.tensor(kept)) for s in (eager, compiled))


@INDUCTOR
@pytest.mark.slow
def test_an_inductor_whole_step_equals_eager_to_the_bit():
    m, s, draft = model(), sampling(0.8, seed=3), Lookup(7, 1, 3)
    compiled = Model.build(m.params, m.ops, IDS, "inductor")
    start = prefill(m, draft, init_state(m, draft, 256), PROMPT, s)
    states = [copy(start), copy(start)]
    for i in range(4):
        made = [x.step(draft, state, s, 8) for x, state in zip((m, compiled), states, strict=True)]
        a, b = map(tensors, made)
        assert a.keys() == b.keys() and all(torch.equal(t, b[key]) for key, t in a.items()), i
        states = [keep(state, state.feed.count.clamp(max=2)) for _, _, state in made]


@INDUCTOR
@pytest.mark.slow
@pytest.mark.parametrize("name, heat", [("mtp", 0.0), ("dflash2", 0.8)])
def test_an_inductor_draft_may_round_but_not_change_the_text(name, heat):
    m, s = model(), sampling(heat, seed=3)
    draft = mtp_draft(m, 3) if name == "mtp" else dflash2_draft(m)
    compiled = Model.build(m.params, m.ops, IDS, "inductor")
    raw, made = (
        generate(x, d, PROMPT.tolist(), s, 24, (), 256) for x, d in ((m, Raw()), (compiled, draft))
    )
    assert made.tokens == raw.tokens
