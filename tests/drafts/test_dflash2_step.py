"""The block draft through operators against its statement for training; what a step launches."""

import dataclasses
from collections import Counter
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from kernels.define import Target
from kernels.registry import select
from tests.decode.small import DRAFT, random_draft
from tests.drafts.test_dflash2 import BLOCK, RING, WIDTH, WINDOW, feed, make, prime, residuals
from tests.kernels.compiled_cases import SHAPE
from tests.model.small import copy
from tests.model.test_launches import Launches, int4
from tr.assemble import assemble, random_dflash2
from tr.checkpoint.load import skeleton
from tr.drafts import dflash2_net as net
from tr.drafts import dflash2_step as step
from tr.drafts.dflash2 import Dflash2, ring_rows
from tr.drafts.head import whole
from tr.model import text
from tr.model.sampling import sampling
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.overrides import load
from tr.quant import rtn
from tr.testing import assert_as_close
from tr.tree import map_tensors, tensors

interpreter = pytest.mark.interpreter
VARIANTS = ["reference", pytest.param("triton", marks=interpreter)]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def fused(draft: Dflash2, variant: str) -> Dflash2:
    return dataclasses.replace(draft, fused=step.fuse(draft.params, select(variant)))


def hidden(draft: Dflash2, state, given) -> torch.Tensor:
    """A block's normed rows as the fused path has them."""
    assert draft.fused is not None
    y = step.block(
        draft.params, draft.fused, state.ring, draft.target.embed,
        given.taps, given.anchor, given.pos, given.count, draft.window,
    )  # fmt: skip
    return y.whole(draft.fused.ops)


def plainly(draft: Dflash2, taps: torch.Tensor, anchor: int) -> torch.Tensor:
    """The same from keys of every position, masked row by row."""
    pos, c, device = len(taps), draft.params.config, taps.device
    past = net.context(draft.params, taps[None], torch.arange(pos, device=device)[None])
    at = pos + torch.arange(c.block, device=device)
    seen = at[:, None] - torch.arange(pos, device=device) < draft.window
    ids = torch.tensor([anchor] + [c.mask_token] * (c.block - 1), device=device)
    x = F.embedding(ids, draft.target.embed)[None]
    return net.block(draft.params, past, x, at[None], seen[None])[0]


PLACES = [(9, 1), (WINDOW + 5, 8), (RING + 1, 4), (3 * RING + 17, 8)]


@pytest.mark.parametrize(
    "variant, pos, count",
    [("reference", *place) for place in PLACES]
    + [pytest.param("triton", *place, marks=interpreter) for place in PLACES[3:]],
)
def test_a_block_equals_training_s(variant, pos, count):
    draft, taps = fused(make(), variant), residuals(pos)
    given = feed(pos, count, taps)
    rows = hidden(draft, prime(draft, taps[: pos - count]), given)
    torch.testing.assert_close(rows, plainly(draft, taps, 7), rtol=1e-4, atol=1e-4)


DRAWN = {"temperature": 0.7, "seed": 2**33 + 1}
STEPS = [("reference", {}, 12), ("reference", DRAWN, 12)]


@pytest.mark.parametrize(
    "variant, settings, steps",
    [*STEPS, pytest.param("triton", DRAWN, 2, marks=interpreter)],
)
def test_drafts_over_many_steps_are_the_plain_path_s(variant, settings, steps):
    """Rejected rows leave nothing that a later step reads."""
    plain, taps, s = make(), residuals(4 * RING), sampling(**settings)
    draft, pos, count = fused(plain, variant), 10, 1
    states = [prime(d, taps[: pos - 1]) for d in (plain, draft)]
    for i in range(steps):
        given = feed(pos, count, taps)
        want, states[0] = plain.propose(states[0], given, s)
        got, states[1] = draft.propose(states[1], given, s)
        assert torch.equal(got, want), i
        count = 1 + i * 5 % BLOCK
        pos += count


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_asked_again_answers_the_same(variant):
    draft, taps = fused(make(dataclasses.replace(DRAFT, layers=1)), variant), residuals(60)
    state, given = prime(draft, taps[:56]), feed(60, 4, taps)
    first, state = draft.propose(state, given, sampling())
    kept = copy(state)
    again, state = draft.propose(state, given, sampling())
    assert torch.equal(first, again)
    assert all(torch.equal(t, tensors(kept)[name]) for name, t in tensors(state).items())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_field_of_a_config_acts_the_same(variant):
    odd = {"causal": True, "input_scale": 0.5, "output_multiplier": 0.5, "softcap": 2.0}
    plain = make(dataclasses.replace(DRAFT, conv_width=3, layers=1, **odd), window=6)
    draft, taps = fused(plain, variant), residuals(40)
    given = feed(40, 3, taps)
    rows = hidden(draft, prime(draft, taps[:37]), given)
    torch.testing.assert_close(rows, plainly(draft, taps, 7), rtol=1e-4, atol=1e-4)
    want, _ = plain.propose(prime(plain, taps[:37]), given, sampling())
    got, _ = draft.propose(prime(draft, taps[:37]), given, sampling())
    assert torch.equal(got, want)


@pytest.mark.parametrize("variant", VARIANTS)
def test_int4_matrices_take_the_parts_of_a_norm(variant):
    plain = make(dataclasses.replace(DRAFT, d_ff=128, heads=8, layers=1))
    params, report = rtn.quantise_all(plain.params)
    assert len(report.converted) == 5  # fc, q k v, out, gate and up, down
    plain = dataclasses.replace(plain, params=params)
    draft, taps = fused(plain, variant), residuals(40)
    assert draft.fused is not None and isinstance(draft.fused.kv, Int4)
    rows = hidden(draft, prime(draft, taps[:37]), feed(40, 3, taps))
    torch.testing.assert_close(rows, plainly(draft, taps, 7), rtol=2e-4, atol=2e-4)


def test_layers_of_two_formats_are_refused():
    params = random_draft()
    mixed = dataclasses.replace(params.layers[0], qkv=rtn.quantise(params.layers[0].qkv)[0])  # type: ignore[arg-type]
    params = dataclasses.replace(params, layers=(mixed, *params.layers[1:]))
    with pytest.raises(ValueError, match="all of one format"):
        step.fuse(params, select("reference"))


@interpreter
def test_a_step_of_the_released_draft_launches_few_kernels():
    """On the meta device: 5 layers of 11, 4 for the context, 1 to begin, 4 for the path."""
    chosen = load(["model=qwen3_8_27b", "draft=dflash2", "prompt=x"], "generate").draft
    config = random_dflash2(chosen.random, SHAPE)

    def packed(matrix):
        return int4(matrix) if isinstance(matrix, Dense) else matrix

    dense = skeleton(lambda generator: net.init(config, generator, torch.bfloat16))
    params = pytree.tree_map(packed, dense, is_leaf=lambda x: isinstance(x, Dense))
    target = skeleton(lambda generator: text.init(SHAPE, generator, torch.bfloat16))
    head = whole(int4(target.head), SHAPE.vocab)
    draft = Dflash2(params, target, 7, head, config.window)
    draft = dataclasses.replace(draft, fused=step.fuse(params, select("triton")))
    with torch.device("meta"):
        state = draft.init_state(4096)
        taps = torch.empty(8, len(config.taps) * config.d_model, dtype=torch.bfloat16)
        scalars = [torch.zeros((), dtype=torch.int64) for _ in range(3)]
        given = dataclasses.replace(feed(9, 1, residuals(9)), taps=taps)
        given = dataclasses.replace(
            given, **dict(zip(("anchor", "pos", "count"), scalars, strict=True))
        )
        s = sampling(device="meta")
    kernels = Counter()

    def count(fn, grid):
        return lambda *args, **kwargs: kernels.update([fn.__name__])

    from triton.runtime.interpreter import InterpretedFunction

    launches = Launches()
    with patch.object(InterpretedFunction, "__getitem__", count):
        draft.propose(state, given, s)  # the first step makes counters and slots
        kernels.clear()
        with launches:
            draft.propose(state, given, s)
    assert kernels["_int4_matmul_kernel"] == 5 * 6 + 4
    assert sum(kernels.values()) == 63
    assert not launches.seen, launches.seen
    assert ring_rows(config, config.window) == 4096 and WIDTH


def embedded(quant):
    """The embedded model's draft as a run on the device makes it."""
    names = ["weights=embedded", "draft=dflash2", "device=auto", f"quant={quant}", "prompt=x"]
    config = load(names, "generate")
    draft = assemble(config).draft(config)
    assert isinstance(draft, Dflash2)
    return draft


def released(quant):
    """Random weights in the shapes of the 27B's draft, convolutions that act, int4."""
    g = torch.Generator("cuda").manual_seed(0)
    chosen = load(["model=qwen3_8_27b", "draft=dflash2", "prompt=x"], "generate").draft
    made = net.init(random_dflash2(chosen.random, SHAPE), g, torch.bfloat16, rtn.random)
    params, c = rtn.quantise_all(made)[0], made.config

    def conv(p):
        projection = rtn.random(p.projection.splits, c.d_model, g, torch.bfloat16)
        return dataclasses.replace(p, projection=projection)

    layers = (
        dataclasses.replace(p, attention_conv=conv(p.attention_conv), mlp_conv=conv(p.mlp_conv))
        for p in params.layers
    )
    params = dataclasses.replace(params, layers=tuple(layers))
    shape = (c.vocab, c.d_model)
    embed = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=g)
    head = whole(rtn.random([c.vocab], c.d_model, g, torch.bfloat16), c.vocab)
    draft = Dflash2(params, SimpleNamespace(embed=embed), 7, head, c.window)  # type: ignore
    return dataclasses.replace(draft, fused=step.fuse(params, select("auto", device=HOPPER)))


HOPPER = Target("cuda", (9, 0))
GPU = [(embedded, "bf16", 700), (embedded, "int4_g128", 700), (released, "int4_g128", 5000)]


PLACES_ON_A_GPU = 12


@pytest.mark.gpu
@pytest.mark.parametrize("make, quant, pos", GPU)
def test_blocks_on_a_gpu_are_as_close_to_float32_as_the_plain_path(make, quant, pos):
    """Blocks at 12 places: the largest error by the usual budget, and the root mean square.

    A few layers on random residuals blow up a rounding by chance: of two paths that round alike,
    one erred 0.4 to 1.7 times as much as the other, by place. Over all places together the mean
    says which of them rounds more often; it must not be this one.
    """
    draft = make(quant)
    assert draft.fused is not None
    given, start, taps = scene(draft, pos)
    embed = SimpleNamespace(embed=draft.target.embed.float())
    wide = dataclasses.replace(draft, params=widened(draft.params), target=embed)  # type: ignore
    rows, plain, exact = [], [], []
    for i in range(PLACES_ON_A_GPU):
        place, anchor, count = pos - 37 * i, 7 + i, 1 + i % BLOCK
        state = start(draft, taps[: place - count])
        rows.append(hidden(draft, state, given(count, place, anchor)))
        plain.append(plainly(draft, taps[:place], anchor))
        exact.append(plainly(wide, taps[:place].float(), anchor).double())
    rows, plain, exact = (torch.stack(each) for each in (rows, plain, exact))
    assert_as_close(rows, plain, exact)
    one, other = ((x.double() - exact).square().mean().sqrt() for x in (rows, plain))
    assert one <= 1.05 * other, (one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("make, quant, pos", GPU)
def test_drafts_on_a_gpu_are_a_captured_graph_s(make, quant, pos):
    """The same when asked again, and the same from a graph, at other counts too."""
    draft, s = make(quant), sampling(device="cuda")
    given, start, taps = scene(draft, pos)
    state, at = start(draft, taps[: pos - 8]), given(8)
    want = draft.propose(state, at, s)[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got, _ = draft.propose(state, at, s)
    for count in (8, 1, 8):
        at.count.fill_(count)
        at.taps.copy_(given(count).taps)
        graph.replay()
        again = got.clone()
        assert torch.equal(again, draft.propose(state, at, s)[0])
        assert 0 <= int(again.min()) and int(again.max()) < draft.head.count
    assert torch.equal(again, want)


def scene(draft: Dflash2, pos: int):
    """What a step is given behind random residuals [pos + 16, taps], a state of some of them."""
    c, g = draft.params.config, torch.Generator("cuda").manual_seed(1)
    shape = (pos + 16, len(c.taps) * c.d_model)
    taps = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=g)

    def given(count: int, place: int = pos, anchor: int = 7):
        at = [torch.tensor(x, device="cuda") for x in (anchor, place, count)]
        fields = dict(zip(("anchor", "pos", "count"), at, strict=True))
        rows = taps[place - count : place - count + 8].clone()
        return dataclasses.replace(feed(9, 1, residuals(9)), taps=rows, **fields)

    def start(d: Dflash2, taps: torch.Tensor):
        return d.prime(d.init_state(1024), taps[:, 0], taps, taps, 0)

    return given, start, taps


def widened(params):
    """Dense numbers in float32; int4 tiles stay."""
    return map_tensors(lambda t: t.float() if t.is_floating_point() else t, params)
