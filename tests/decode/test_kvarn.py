"""A KVarN cache: what a row sees depends on positions alone; drafts, cuts, rewinds are exact."""

import functools

import pytest
import torch

from kernels.kvarn import RING, TILE, edge, first_seen
from kernels.registry import select
from kernels.rms_norm import rms_norm
from tests.decode.embedded import CASES, SETTINGS, tokenizer, weights
from tests.model.small import copy
from tr.assemble import EMBEDDED, cached, load_dflash2
from tr.decode.generate import generate
from tr.decode.step import Model, State
from tr.decode.stream import Counts, advance, open_stream
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.head import whole
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.nn.formats.kv.cache import make
from tr.nn.formats.kv.kvarn import Kvarn
from tr.nn.rope import Rope
from tr.tree import tensors, unchecked

TEXT = CASES[6].prompt + CASES[0].prompt  # over 500 tokens
CAPACITY, TOKENS = 1024, 28


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@functools.cache
def model(kv: str = "kvarn", variant: str = "tile") -> Model:
    params = cached(weights(variant).target, kv)
    return Model.build(params, select(variant), tokenizer().count)


@functools.cache
def draft(name: str, kv: str = "kvarn", variant: str = "tile") -> Draft:
    m = model(kv, variant)
    head = whole(m.params.head, m.ids)
    if name == "raw":
        return Raw()
    if name == "mtp":
        return Mtp(cached(weights(variant).mtp, kv), m.params, m.ops, 7, head)
    params = load_dflash2(EMBEDDED / "draft", m.params)
    return Dflash2(params, m.params, 7, head, params.config.window)


def written(name: str, prompt: int, setting: str, kv="kvarn", variant="tile") -> list[int]:
    m, heat = model(kv, variant), sampling(**SETTINGS[setting])
    drafted = draft(name, kv, variant)
    return generate(m, drafted, TEXT[:prompt], heat, TOKENS, capacity=CAPACITY).tokens


@pytest.mark.parametrize(
    "prompt, setting, kv",
    [
        (2 * TILE - 4, "greedy", "kvarn"),
        (3 * TILE - 1, "0.5", "kvarn"),
        (3 * TILE + 3, "1.2", "kvarn_v4"),
        (3 * TILE + 16, "greedy", "kvarn"),
    ],
)
def test_speculative_equals_raw_across_the_ends_of_tiles(prompt, setting, kv):
    raw = written("raw", prompt, setting, kv)
    for name in ("mtp", "dflash2"):
        assert written(name, prompt, setting, kv) == raw, name


def test_reference_operators():
    raw, drafted = (written(name, 262, "greedy", variant="reference") for name in ("raw", "mtp"))
    assert drafted == raw


def caches(state: State) -> list[Kvarn]:
    return [s for s in state.target.layers if isinstance(s, Kvarn)]


@functools.cache
def inputs() -> tuple[torch.Tensor, ...]:
    """q, gate, k, v of 600 tokens."""
    g = torch.Generator().manual_seed(5)
    return tuple(torch.randn(600, n, 64, generator=g) for n in (6, 6, 2, 2))


def attended(cuts: list[int], size: int = 16) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Chunks of `cuts` tokens, then steps of `size` rows: what is live, what rows attend to."""
    q, gate, k, v = inputs()
    ops, still = select("tile"), torch.zeros(64)  # no gain and no angle
    cache = make("kvarn", 2, 1024, 64, k)
    assert isinstance(cache, Kvarn)
    out, pos = [], 0
    for n in cuts:
        at = slice(pos, pos + n)
        query, key = (rms_norm(x[at], still, 1e-6) for x in (q, k))
        out.append(cache.prefill(query, gate[at], key, v[at], pos, ops))
        pos += n
    angles = Rope(cos=torch.ones(1024, 8), sin=torch.zeros(1024, 8))
    while pos < len(q):
        at = slice(pos, pos + size)
        qg = torch.stack([q[at], gate[at]], 2).flatten(1)
        qkv = torch.cat([qg, k[at].flatten(1), v[at].flatten(1)], 1)
        query, gates = cache.store(qkv, still, still, angles, torch.tensor(pos), 1e-6, ops)
        out.append(cache.attend(query, gates, torch.tensor(pos), ops))
        pos += len(qkv)
    live = tensors(cache)
    last = edge(len(q) - 1) * TILE
    live["ring"] = live["ring"][:, :, torch.arange(last, len(q)) % RING]
    return live, torch.cat(out)


def test_steps_of_any_size_pack_and_see_the_same():
    whole, want = attended([])
    for size in (1, 5, 7):
        cache, out = attended([], size)
        assert torch.equal(out, want)
        for name, x in cache.items():
            assert torch.equal(x, whole[name]), (size, name)
    codes = whole["k_codes"].flatten(2).any(2).all(0).nonzero()[:, 0]
    assert codes.tolist() == list(range(1, edge(599)))


@pytest.mark.parametrize(
    "cuts",
    [[600], [64] * 9 + [24], [144, 128, 328], [400, 112], [1, 271, 1, 127], [30], [128, 17], [272]],
    ids=str,
)
def test_chunks_of_any_cut_pack_and_see_the_same(cuts):
    """As steps do: tiles and exact rows to the bit, what rows attend to up to rounding."""
    whole, want = attended([])
    cache, out = attended(cuts)
    for name, x in cache.items():
        assert torch.equal(x, whole[name]), name
    assert (out - want).abs().max() < 2e-3 * want.abs().max()


def rows(state: State, start: bool) -> list[tuple[torch.Tensor, ...]]:
    """What to keep of each cache: all that it holds of the text, or what it forgets."""
    m = draft("mtp")
    reach = int(state.target.pos) + m.rows  # the chain's cache is some rows ahead
    kept = [c.rows(0 if start else reach, reach) for c in every_cache(state)]
    return [tuple(x.clone() for x in part) for part in kept]


def every_cache(state: State) -> list[Kvarn]:
    return [*caches(state), state.draft.cache]


@torch.inference_mode()
def test_a_conversation_goes_on_where_it_was():
    """In place, by the rows that were exact then; and in another state, by all of its rows.

    Meanwhile the text goes on for more than two tiles, so that the ring has forgotten them.
    """
    stream = open_stream(model(), draft("mtp"), TEXT[:398], sampling(), CAPACITY)

    def ahead(tokens: int) -> list[int]:
        return [t for part in advance(stream, Counts(), tokens) for t in part]

    ahead(20)
    start = copy(stream.state)
    forgotten, all_rows = rows(start, False), rows(start, True)
    pos = int(start.target.pos)
    want = ahead(240)
    for c, kept in zip(every_cache(stream.state), forgotten, strict=True):
        c.put(pos + draft("mtp").rows, kept)
    back = copy(start)
    for a, b in zip(every_cache(back), every_cache(stream.state), strict=True):
        for old, new in zip(tensors(a).values(), tensors(b).values(), strict=True):
            old.copy_(new)
    stream.state = back
    assert ahead(240) == want

    back = copy(start)
    for c, kept in zip(every_cache(back), all_rows, strict=True):
        for x in tensors(c).values():
            x.fill_(3)  # as if another conversation had been there
        c.put(0, kept)
    stream.state = back
    assert ahead(240) == want


def test_first_seen_covers_every_tile_once_and_in_time():
    for sizes in ([1], [16], [3, 16, 1, 7], [200, 5], [600]):
        pos, seen = 0, []
        for i in range(2000):
            rows = sizes[i % len(sizes)]
            new = list(first_seen(pos, rows))
            assert all(TILE * (t + 1) + 16 in range(pos, pos + rows) for t in new)
            assert rows > 16 or all(TILE * (t + 1) < pos for t in new)
            seen += new
            assert seen == list(range(1, max(1, edge(pos + rows - 1))))
            pos += rows
