"""What only the Triton variants have: float8 caches, split sums, device-side cuts, other cards.

Rows, places, closeness to float64 and `opcheck` are tested for every variant in test_rows.py and
test_ops.py. Here the kernels run in the interpreter, or are compiled for a card that is not here.
"""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from kernels.define import VARIANTS, Target, refusal
from tests.kernels.cases import CASES, ROWS, table
from tr.testing import assert_as_close

pytest.importorskip("triton")

import kernels.gpu  # noqa: E402
from kernels.attention_decode.triton import Plan  # noqa: E402
from kernels.attention_decode.triton import launch as attend  # noqa: E402
from kernels.gpu import counters, dependent_launch  # noqa: E402

FLOAT8 = torch.float8_e4m3fn
interpreter = pytest.mark.interpreter


def variants(operator):
    return VARIANTS[operator]["reference"], VARIANTS[operator]["triton"]


@pytest.fixture(scope="module")
def compiled():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compiled", "90"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_fits_an_h200(compiled):
    """No spills; tensor cores; no contracted recurrence."""
    lines = compiled[:-1]
    assert {line["kernel"] for line in lines} >= {"_gated_delta_step", "_attend", "_ends", "_best"}
    for line in lines:
        assert line["spilled"] == 0, line
        assert line["shared"] <= 232448, line
        if line["kernel"] == "_attend":
            assert line["wgmma"] > 0 and line["mma"] == 0, line
        delta = line["kernel"].startswith("_gated_delta_step")
        if line["kernel"] != "_attend" and not delta:
            assert line["early"] == 0, line  # nothing is read before the kernel before has ended
        if delta:
            assert line["contractible"] == 0, line


def test_gluon_s_loop_over_rows_stays_inside_warps(compiled):
    """Sums over keys by shuffles; 32 values of the state to a lane."""
    (line,) = (line for line in compiled[:-1] if line["kernel"] == "_gated_delta_step_gluon")
    assert line["busiest"] == {"fma": 88, "barriers": 0, "shuffles": 4}, line


def test_a_layer_s_operators_are_one_launch(compiled):
    """What an operator launches, in order; a step has 64 layers, so each launch counts."""
    launches = {}
    for line in compiled[:-1]:
        launches.setdefault(line["case"], []).append(line["kernel"])
    for case, names in launches.items():
        several = {"sample triton cut": 5, "penalize triton ": 2, "accept triton with taps": 2}
        assert len(names) == several.get(case, 1), (case, names)


def test_row_counts_share_one_compilation(compiled):
    """One and sixteen rows must launch the same code, or their bits may differ."""
    keys = compiled[-1]["keys"]
    for kernel in ("_gated_delta_step", "_attend", "_qk_rope_store", "_ends", "_best", "_penalize"):
        assert any(key.endswith(kernel) for key in keys), kernel
    for kernel, found in keys.items():
        if kernel.endswith("_attend"):  # above 8 rows, twice the lines and the warps to hold them
            found = {re.sub(r"'(ROWS|STAGES|num_warps)': \d+", "", key) for key in found}
        # 8 columns of x up to 8 rows, 16 above: test_gpu.py compares their bits
        assert len(found) == (2 if re.search(r"_int4_\w+_gluon$", kernel) else 1), kernel


@interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_float8_caches_are_stored_as_the_reference_stores_them(dtype):
    reference, triton = variants("qk_rope_store")
    arguments = CASES["qk_rope_store"].arguments(dtype)
    arguments[0] = 40 * arguments[0]
    arguments[0][:, -1] = torch.linspace(-600, 600, ROWS)  # clamped at both ends
    arguments[6:8] = [a.to(FLOAT8) for a in arguments[6:8]]
    want, got = ([a.clone() if torch.is_tensor(a) else a for a in arguments] for _ in range(2))
    reference(*want)
    triton(*got)
    values = got[7].float()
    assert values.abs().max() == 448 and values.isfinite().all()
    assert torch.equal(got[7].view(torch.uint8), want[7].view(torch.uint8))
    keys, wanted = got[6].float(), want[6].float()
    assert (keys - wanted).abs().max() <= wanted.abs().max() / 8  # a norm's last bit may tip a code
    assert (keys != wanted).float().mean() < 1e-3


@interpreter
def test_rows_past_the_capacity_are_not_stored():
    _, triton = variants("qk_rope_store")
    arguments = CASES["qk_rope_store"].arguments(torch.float32)
    capacity = arguments[6].shape[1]
    arguments[5] = torch.tensor(capacity - 2)
    before = [a.clone() for a in arguments[6:8]]
    triton(*arguments)
    for a, b in zip(arguments[6:8], before, strict=True):
        assert torch.equal(a[:, :-2], b[:, :-2]) and not torch.equal(a[:, -2:], b[:, -2:])


@interpreter
@pytest.mark.parametrize("name", ["reference", "tile", "triton"])
def test_attention_over_a_float8_cache(name):
    call = VARIANTS["attention_decode"][name]
    arguments = CASES["attention_decode"].arguments(torch.float16)
    arguments[2:4] = [a.to(FLOAT8) for a in arguments[2:4]]
    plain = [*arguments[:2], *(a.half() for a in arguments[2:4]), arguments[4]]
    exact = VARIANTS["attention_decode"]["reference"](
        *(a.double() if a.is_floating_point() else a for a in plain)
    )
    assert_as_close(call(*arguments), VARIANTS["attention_decode"]["reference"](*plain), exact)


FEW = Plan(splits=5, block=64, rows=4, parts=2, stages=1)
ALL = Plan(splits=5, block=64, rows=8, parts=1, stages=1, queries_first=True)


@interpreter
@pytest.mark.parametrize("chosen, pos", [(FEW, p) for p in (0, 62, 63, 318, 700)]
                         + [(ALL, p) for p in (1, 62, 318, 511, 700)])  # fmt: skip
def test_attention_at_the_seams_of_blocks_and_splits(chosen, pos):
    """Blocks of 64 in turn to 5 splits.

    At 62 and 63 a row's only split is alone or not, which changes no bit; at 318 and 700 rows of
    one program need one round more or not.
    """
    reference, _ = variants("attention_decode")
    q, gate, k, v, *_ = CASES["attention_decode"].arguments(torch.float32)
    q, gate, at = q[:8].clone(), gate[:8].clone(), torch.tensor(pos)
    double = [t.double() for t in (q, gate, k, v)]
    got = attend(q, gate, k, v, at, chosen)
    assert_as_close(got, reference(q, gate, k, v, at), reference(*double, at))
    for i in (0, 1, 5):
        alone = attend(q[i : i + 1].clone(), gate[i : i + 1].clone(), k, v, at + i, chosen)
        assert torch.equal(alone[0], got[i])


@interpreter
def test_counters_are_shared_and_left_at_zero():
    held = counters(torch.device("cpu"), 5)
    assert held.dtype == torch.int32 and held is counters(torch.device("cpu"), 5)
    q, gate, k, v, pos, *_ = CASES["attention_decode"].arguments(torch.float32)
    chosen = Plan(splits=5, block=64, rows=4, parts=1, stages=1)
    attend(q, gate, k, v, pos, chosen)
    assert not counters(q.device, 4 * 2).any()  # groups of rows at most, key-value heads
    variants("gated_delta_step")[1](*CASES["gated_delta_step"].arguments(torch.float32))
    assert not counters(q.device, 2).any()


def test_counters_refuse_their_first_use_inside_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match="run the step once before its capture"):
        counters(torch.device("cuda", 7), 3)


@pytest.mark.parametrize("capability, overlaps", [((8, 6), False), ((9, 0), True), ((12, 0), True)])
def test_launches_overlap_from_hopper_on_unless_told_not_to(monkeypatch, capability, overlaps):
    device = torch.device("cuda", 7)
    monkeypatch.setattr(kernels.gpu, "_capability", lambda device: capability)
    monkeypatch.delenv("TR_DEPENDENT_LAUNCH", raising=False)
    assert dependent_launch(device) == overlaps and not dependent_launch(torch.device("cpu"))
    monkeypatch.setenv("TR_DEPENDENT_LAUNCH", "0")
    assert not dependent_launch(device)


CUTS = [
    {}, {"heat": 0.0}, {"k": 1}, {"k": 5}, {"k": 1000}, {"p": 0.0}, {"p": 0.31}, {"p": 0.95},
    {"m": 0.2}, {"m": 1.0}, {"k": 40, "p": 0.8, "m": 0.02}, {"heat": 4.0, "k": 100, "p": 0.9},
]  # fmt: skip


@interpreter
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_drawn_tokens_are_the_reference_s(cut):
    reference, triton = variants("sample")
    logits = 2 * torch.randn(4, 300)
    logits[1] = logits[1].bfloat16().float()  # some ties
    logits[2] = logits[2].round()  # many
    logits[3] = 0.0  # nothing else
    logits[:, 290:] = 50.0  # padding
    cut = {"heat": 0.9, "k": 0, "p": 1.0, "m": 0.0, **cut}
    scalars = [torch.tensor(cut[name]) for name in ("heat", "k", "p", "m")]
    seed = torch.tensor([2**32 - 1, 123456789])
    arguments = [logits, torch.tensor(2**31 + 5), *scalars, seed, 290]
    assert torch.equal(triton(*arguments), reference(*arguments))


@interpreter
@pytest.mark.parametrize(
    "cut", [{"k": 20, "p": 0.8}, {"p": 0.97}, {"k": 3000, "p": 0.9, "m": 1e-4}], ids=str
)
def test_cuts_across_blocks_are_the_reference_s(cut):
    """Three blocks; thousands of candidates; ties at the ends; a mask that leaves few; none."""
    reference, triton = variants("sample")
    logits = 3 * torch.randn(4, 9_000)
    logits[1] = logits[1].bfloat16().float()
    logits[2] = logits[2].masked_fill(torch.rand(9_000) < 0.99, -torch.inf)
    logits[3] = -torch.inf
    cut = {"heat": 0.7, "k": 0, "p": 1.0, "m": 0.0, **cut}
    scalars = [torch.tensor(cut[name]) for name in ("heat", "k", "p", "m")]
    for position in (3, 77):
        arguments = [logits, torch.tensor(position), *scalars, torch.tensor([9, 8]), 8_990]
        want = reference(*arguments)
        assert torch.equal(triton(*arguments), want) and want[3] == 0


@interpreter
def test_drawing_as_an_operator_and_row_by_row():
    _, triton = variants("sample")
    case = CASES["sample"]
    arguments = case.cut(case.arguments(torch.bfloat16), 0, 4)
    whole = triton(*arguments)
    for start, stop in ((0, 1), (1, 3), (3, 4)):
        assert torch.equal(triton(*case.cut(arguments, start, stop)), whole[start:stop])
    arguments = case.cut(arguments, 0, 1)
    arguments[2] = torch.tensor(0.0)
    torch.library.opcheck(triton.op, tuple(arguments))


@interpreter
def test_the_lowest_id_wins_across_blocks():
    _, triton = variants("sample")
    logits = torch.zeros(2, 10_000)
    logits[0, [9_000, 5_000, 4_500]] = 1.0
    logits[1, 9_999] = torch.nan
    off = [torch.tensor(x) for x in (0, 0.0, 0, 1.0, 0.0)]
    assert triton(logits, *off, torch.tensor([0, 0]), 9_999).tolist() == [4_500, 0]


@interpreter
def test_what_the_variants_refuse(monkeypatch):
    def refuses(operator, index, value, complaint, dtype=torch.float32):
        arguments = CASES[operator].arguments(dtype)
        arguments[index] = value(arguments[index])
        with pytest.raises(ValueError, match=complaint):
            VARIANTS[operator]["triton"](*arguments)

    def twice(x):
        return torch.cat([x, x])

    refuses("rms_norm", 0, lambda x: x[:, ::2], "x must be contiguous")
    refuses("rms_norm", 0, lambda x: torch.zeros(1, 16385), "a gain of|widths up to")
    refuses("add_rms_norm", 1, lambda x: x[:1].contiguous(), "expected delta")
    refuses("attention_decode", 0, twice, "at most 16 rows, got 32")
    refuses("attention_decode", 2, lambda x: x.half(), "needs one dtype")
    refuses("gated_delta_step", 0, twice, "at most 16 rows, got 32")
    refuses("gated_delta_step", 8, lambda x: x[:4].contiguous(), "16 rows, but records of 4")
    refuses("sample", 7, lambda x: 321, "ids must be 1 .. 320")
    odd = CASES["attention_decode"].arguments(torch.float32)
    odd[2:4] = [a[:, :1000].contiguous() for a in odd[2:4]]
    with pytest.raises(ValueError, match="kernel.attention_decode=reference"):
        VARIANTS["attention_decode"]["triton"](*odd)
    monkeypatch.setattr(kernels.gpu, "INTERPRETED", False)
    refuses("silu_mul", 0, lambda x: x, "needs CUDA tensors, got gate_up on cpu")


def test_old_cards_are_refused_by_name():
    for operator in CASES:
        if "triton" in table(operator):
            name = CASES[operator].operator
            assert "compute capability" in refusal(name, "triton", Target("cuda", (7, 5)))
            assert not refusal(name, "triton", Target("cuda", (9, 0)))
