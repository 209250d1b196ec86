"""Many rows over spans of keys: the same bits however chunks and spans are cut, and two sources.

On a GPU with the 27B's heads; elsewhere in Triton's interpreter, and Gluon's code over torch.
"""

import json
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kernels.attention_prefill import ALL, BEFORE, BEHIND
from kernels.codes import encode
from kernels.define import VARIANTS, Target, refusal
from kernels.qk_rope_store import as_cached
from kernels.registry import select
from tr.nn.formats.kv import spans
from tr.testing import assert_as_close

pytest.importorskip("triton")

import kernels.gpu  # noqa: E402
from tests.kernels.gluon_on_cpu import launches  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HEADS, KV_HEADS, D = (24, 4, 256) if GPU else (2, 1, 64)
DTYPE = torch.bfloat16 if GPU else torch.float16  # what the interpreter can multiply
TABLE = VARIANTS["attention_prefill"]
CARD = Target.of(DEVICE)
FAST = [v for v in ("triton", "gluon") if not GPU or not refusal("attention_prefill", v, CARD)]


@pytest.fixture(autouse=True)
def on_the_device():
    with torch.device(DEVICE):
        yield


class Chunk:
    """Rows at pos .. of one variant, over a cache that is longer than what they see."""

    def __init__(self, variant: str, tokens: int, pos: int, dtype=DTYPE) -> None:
        self.variant, self.tokens, self.pos, self.end = variant, tokens, pos, pos + tokens
        self.q = torch.randn(tokens, HEADS, D, dtype=dtype)
        self.gate = torch.randn(tokens, HEADS, 2 * D, dtype=dtype)[..., D:]  # as projections cut it
        self.k, self.v = (torch.randn(KV_HEADS, 512, D, dtype=dtype) for _ in range(2))

    def rows(self, first: int, last: int) -> Tensor:
        """A call with some of the rows, and the keys up to theirs."""
        k, v = (x[:, : self.pos + last] for x in (self.k, self.v))
        gate = self.gate[first:last]
        return self._called(self.q[first:last].clone(), gate, k, v, self.pos + first, 0)

    def spans(self, *cuts: int | tuple[int, int, int]) -> Tensor:
        """Calls with all rows and the keys between cuts: (start, stop, side), or starts alone."""
        stops = [*cuts[1:], self.end]
        parts = [(c, s, ALL) if isinstance(c, int) else c for c, s in zip(cuts, stops, strict=True)]
        out = torch.full(self.q.shape, torch.nan)
        mass = out.new_full((self.tokens, HEADS, 2), torch.nan)
        y = out
        for i, (start, stop, side) in enumerate(parts):
            k, v = (x[:, start:stop] for x in (self.k, self.v))
            order = i == 0, i == len(parts) - 1
            args = (self.q, self.gate, k, v, self.pos, start, out, mass, *order, side, 64, 16)
            y = self._called(*args)
            assert y.shape == (self.tokens if order[1] else 0, HEADS * D)
        return y

    def check(self, y: Tensor) -> None:
        """As close to float64 as the reference is."""
        args = self.q, self.gate, self.k[:, : self.end], self.v[:, : self.end]
        exact = TABLE["reference"](*(x.double() for x in args), self.pos, 0)
        assert_as_close(y, TABLE["reference"](*args, self.pos, 0), exact)

    def _called(self, *args) -> Tensor:
        if self.variant != "gluon" or GPU:
            return TABLE[self.variant](*args)
        with patch.object(kernels.gpu, "INTERPRETED", True), launches():
            return TABLE["gluon"](*args)


@pytest.mark.parametrize("variant", FAST)
def test_a_chunk_s_cut_changes_no_bit(variant):
    """At multiples of 64, as prefill cuts, and elsewhere; one row as among all."""
    c = Chunk(variant, 150, 70)
    whole = c.rows(0, 150)
    c.check(whole)
    for cut in (64, 128, 97):
        assert torch.equal(torch.cat([c.rows(0, cut), c.rows(cut, 150)]), whole)
    assert torch.equal(c.rows(149, 150), whole[149:])


@pytest.mark.parametrize("variant", FAST)
def test_a_span_s_cut_changes_no_bit(variant):
    c = Chunk(variant, 70, 200)
    whole = c.rows(0, 70)
    for cuts in ((0, 64), (0, 128, 192), (0, 256)):  # some rows see nothing of the last one
        assert torch.equal(c.spans(*cuts), whole)


@pytest.mark.parametrize("variant", ["reference", *FAST])
@pytest.mark.parametrize("tokens, pos", [(130, 0), (70, 143), (1, 208), (20, 200)])
def test_two_sources_make_one(variant, tokens, pos):
    """Tiles of 64 keys that are packed 16 rows after their end, and what is not packed yet."""
    c = Chunk(variant, tokens, pos)
    near = max((pos - 16) // 64 * 64, 0)
    y = c.spans((near, c.end, BEHIND), (0, c.end // 64 * 64 or 64, BEFORE))
    c.check(y)
    if variant != "reference":
        assert torch.equal(c.spans((near, c.end, BEHIND), (0, 64, BEFORE), (64, 256, BEFORE)), y)


@pytest.mark.parametrize("variant", ["reference", *FAST])
@pytest.mark.parametrize("side", [ALL, BEFORE, BEHIND])
def test_rows_see_their_keys_alone(variant, side):
    """What a row must not see may be anything finite."""
    c = Chunk(variant, 100, 100)
    first = (0, 64, ALL) if side == BEFORE else (0, 64, BEFORE)  # each row sees some key
    y = c.spans(first, (64, c.end, side))
    for row in (0, 43, 44, 99):  # at the seam of an edge: 144 = 128 + 16
        p = 100 + row
        edge = (p - 16) // 64 * 64
        low, high = {ALL: (0, p + 1), BEFORE: (0, edge), BEHIND: (edge, p + 1)}[side]
        kept = c.k.clone(), c.v.clone()
        for x in (c.k, c.v):
            x[:, max(high, 64) :] = 300.0
            x[:, 64 : max(low, 64)] = -300.0
        assert torch.equal(c.spans(first, (64, c.end, side))[row], y[row])
        c.k, c.v = kept


@pytest.mark.interpreter
def test_what_carries_the_sums_is_named():
    c = Chunk("triton", 4, 64)
    args = c.q, c.gate, c.k[:, :68], c.v[:, :68], 64, 0
    with pytest.raises(ValueError, match="a span among several needs out, got None"):
        TABLE["triton"](*args, None, None, True, False)
    short = torch.empty(4, HEADS, D), torch.empty(3, HEADS, 2)
    with pytest.raises(ValueError, match=r"expected mass contiguous, fp32 \(4, 2, 2\), got"):
        TABLE["triton"](*args, *short, True, False)
    with pytest.raises(ValueError, match="spans that start on a multiple of 64, got .* and 32"):
        TABLE["triton"](*args[:5], 32)
    with pytest.raises(ValueError, match="gluon needs 16 bits and heads of at most 256 dims"):
        Chunk("gluon", 4, 64, torch.float32).rows(0, 4)


def stored(name: str, keys: int) -> tuple[Tensor, ...]:
    """Keys and values in a format, cut out of a longer cache."""
    k, v = (torch.randn(KV_HEADS, 512, D) for _ in range(2))
    if name == "fp8":
        return tuple(as_cached(x, torch.float8_e4m3fn)[:, :keys] for x in (k, v))
    dtype = torch.int8 if name == "int8" else torch.uint8
    (k, k_scale), (v, v_scale) = encode(k, dtype), encode(v, dtype)
    return tuple(x[:, :keys] for x in (k, v, k_scale, v_scale))


@pytest.mark.parametrize("variant", sorted(VARIANTS["kv_restore"]))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
def test_restored_numbers_are_the_reference_s(variant, name, dtype):
    codes, _, *scales = stored(name, 77)
    scale = scales[0] if scales else None
    want, got = (torch.full((KV_HEADS, 100, D), torch.nan, dtype=dtype) for _ in range(2))
    VARIANTS["kv_restore"]["reference"](codes, scale, want[:, 10:87])
    VARIANTS["kv_restore"][variant](codes, scale, got[:, 10:87])
    assert want[:, 10:87].isfinite().all() and want[:, 87:].isnan().all()
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
def test_spans_of_a_format_give_one_answer(name, monkeypatch):
    picked = {x: "triton" for x in ("attention_prefill", "kv_restore")}
    ops = select("auto", picked, DEVICE)
    cache = stored(name, 270)
    q, gate = (torch.randn(70, HEADS, D, dtype=DTYPE) for _ in range(2))
    whole = spans.attend(cache, q, gate, 200, ops)
    for span in (128, 192):  # the last one short, and with rows that see none of it
        monkeypatch.setattr(spans, "SPAN", span)
        assert torch.equal(spans.attend(cache, q, gate, 200, ops), whole)


def test_loops_do_not_spill():
    """On Hopper, by warpgroups, and on a card with 99 KB of shared memory."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.prefill_compiled", "90", "86"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(line["variant"], line["capability"]) for line in lines]
    assert found == [("gluon", 90), ("triton", 90), ("triton", 86)]
    for line in lines:
        hopper = line["capability"] == 90
        assert line["loops"] == 2 and line["spills_in_loops"] == 0, line
        assert line["stack_bytes"] <= 64, line  # what the loops do not need
        assert line["shared_bytes"] <= (232_448 if hopper else 101_376), line
        assert (line["wgmma"] > 0) == hopper == (line["mma"] == 0), line
