"""What a draft's operators have of their own: ties, broken numbers, rings; and on a GPU, replay.

Closeness to float64 and `opcheck` are tested for every variant in test_rows.py and test_ops.py.
"""

import pytest
import torch

from kernels.benches import BENCHES
from kernels.define import VARIANTS
from tests.kernels.cases import CASES, outputs
from tests.kernels.compiled_cases import BLOCKS, SHAPE
from tr.bench import Draw
from tr.testing import assert_as_close
from tr.tree import map_tensors

pytest.importorskip("triton")
interpreter = pytest.mark.interpreter
BOTH = ["reference", pytest.param("triton", marks=interpreter)]


@pytest.mark.parametrize("variant", BOTH)
def test_equal_logits_come_by_their_ids_and_nan_first(variant):
    """Across blocks of 2048; a NaN of either sign is the largest, padding is never taken."""
    logits = torch.zeros(3, 5000)
    logits[0, [4100, 2050, 7]] = 1.0
    logits[1, 4000], logits[1, 10] = -torch.tensor(torch.nan), -1.0
    logits[2] = -torch.inf
    logits[:, 4990:] = 9.0
    scores, best = VARIANTS["dflash_top"][variant](logits, 4990, 5)
    assert best.tolist() == [[7, 2050, 4100, 0, 1], [4000, 0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert scores[0].tolist() == [1, 1, 1, 0, 0] and scores[1, 0].isnan()


@pytest.mark.parametrize("variant", BOTH)
def test_the_first_of_equal_candidates_wins_and_no_number_breaks_a_row(variant):
    arguments = CASES["dflash_select"].arguments(torch.float32)
    arguments[-2], arguments[-1] = False, -7
    arguments[0] = torch.zeros_like(arguments[0])  # no pair counts
    arguments[4] = torch.zeros_like(arguments[4])
    arguments[4][3, 2:4] = 1.0
    arguments[4][5, 1], arguments[4][6, 4] = torch.nan, torch.inf
    arguments[4][7] = -torch.inf
    best = arguments[3]
    want = [int(best[i, 2 if i == 3 else 0]) for i in range(len(best))]
    want[5:8] = [-7] * 3
    assert VARIANTS["dflash_select"][variant](*arguments).tolist() == want


@interpreter
@pytest.mark.parametrize("noise", [False, True])
def test_paths_are_the_reference_s(noise):
    for seed in range(5):
        draw = Draw("cpu", torch.float32, seed)
        arguments = BENCHES["dflash_select"].inputs(draw, 7, vocab=90, rank=8, n=6, noise=noise)
        arguments[0] *= 9  # pairs weigh as much as logits
        want, got = (
            VARIANTS["dflash_select"][name](*arguments) for name in ("reference", "triton")
        )
        assert torch.equal(got, want)
        first = torch.equal(
            want, arguments[3].gather(1, arguments[4].argmax(1, keepdim=True))[:, 0]
        )
        assert not first  # the pairs decide something


RING = CASES["dflash_attention"].sizes
WAYS = [
    {"pos": 0, "count": 0},
    {"pos": 5, "count": 5},
    {"pos": 64, "count": 1},
    {"pos": 130, "count": 8},  # the new rows go round the ring's end
    {"pos": 300, "count": 3, "causal": True},
    {"pos": 300, "count": 3, "window": 1},
    {"pos": 300, "count": 0, "size": 512, "window": 400},
]


@interpreter
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_attention_and_its_ring_are_the_reference_s(way):
    table = VARIANTS["dflash_attention"]
    sizes = {**RING, **way}
    arguments = BENCHES["dflash_attention"].inputs(Draw("cpu", torch.float32), 8, **sizes)
    for i in (9, 10):  # what the ring holds past the text is garbage of any size
        arguments[i][:, sizes["pos"] - sizes["count"] : -64 if sizes["pos"] else None] *= 50
    double = [a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
    runs = [map_tensors(torch.clone, a) for a in (arguments, arguments, double)]
    calls = table["triton"], table["reference"], table["reference"]
    assert_as_close(*(call(*run) for call, run in zip(calls, runs, strict=True)))
    new = (sizes["pos"] - sizes["count"] + torch.arange(sizes["count"])) % sizes["size"]
    for i in (9, 10):
        got, want, exact = (run[i] for run in runs)
        assert_as_close(got, want, exact)
        changed = (got != arguments[i]).any(-1).any(0)
        assert changed.nonzero().flatten().tolist() == sorted(new.tolist())


@interpreter
def test_what_the_variants_refuse():
    def refuses(operator, index, value, complaint):
        arguments = CASES[operator].arguments(torch.float32)
        arguments[index] = value(arguments[index])
        with pytest.raises(ValueError, match=complaint):
            VARIANTS[operator]["triton"](*arguments)

    refuses("dflash_embed", 0, lambda x: x[:, :100].contiguous(), "kernel.dflash_embed=reference")
    refuses("dflash_embed", 3, lambda rows: 17, "at most 16 rows, got 17")
    refuses("dflash_conv", 2, lambda x: x[:, :-5].contiguous(), "do not fit")
    refuses("dflash_attention", 9, lambda x: x[:, :100].contiguous(), "a ring of a power of two")
    refuses("dflash_attention", 11, lambda window: 120, "a ring of 128 rows for a window of 120")
    refuses("dflash_top", 1, lambda ids: 5, "0 < top <= ids <= 320, got top 6 and 5 ids")
    refuses("dflash_select", 1, lambda x: x[:, :4].contiguous(), "rows of rank 8")


def real(operator):
    """Arguments of the released draft's shapes, on the device."""
    bench = BENCHES[operator]
    return bench.inputs(Draw("cuda"), 8, **next(iter(bench.cases(SHAPE).values())))


@pytest.mark.gpu
@pytest.mark.parametrize("operator", BLOCKS)
def test_as_close_to_float64_as_the_reference_on_a_gpu(operator):
    arguments, table = real(operator), VARIANTS[operator]
    if operator == "dflash_select":
        want, got = (table[name](*arguments) for name in ("reference", "triton"))
        assert (got == want).float().mean() > 0.8  # bfloat16 has near ties
        return
    double = [a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
    meaning = BENCHES[operator].meaning
    found, plain, exact = (
        meaning(outputs(table[name](*map_tensors(torch.clone, given))))
        for name, given in (
            ("triton", arguments),
            ("reference", arguments),
            ("reference", double),
        )
    )
    for a, b, c in zip(found, plain, exact, strict=True):
        assert_as_close(a, b, c)
    if operator == "dflash_top":
        assert torch.equal(table["triton"](*arguments)[1], table["reference"](*arguments)[1])


@pytest.mark.gpu
@pytest.mark.parametrize("operator", BLOCKS)
def test_replay_and_repetition_change_no_bit(operator):
    arguments, call = real(operator), VARIANTS[operator]["triton"]
    want = outputs(call(*map_tensors(torch.clone, arguments)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = outputs(call(*arguments))
    for _ in range(20):
        graph.replay()
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)
