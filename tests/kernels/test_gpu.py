"""The fast variants where they are compiled: the 27B's shapes on a CUDA device.

Row counts, places, replay in a captured graph, repeated calls; closeness to the reference.
"""

import pytest
import torch

from kernels.benches import BENCHES
from kernels.define import VARIANTS, Target, refusal
from kernels.registry import FAST
from tests.kernels.cases import CASES, CUT, ROWS, outputs
from tests.kernels.compiled_cases import BY_ROWS
from tests.kernels.compiled_cases import arguments as make
from tr.testing import assert_as_close
from tr.tree import map_tensors

pytestmark = pytest.mark.gpu
FLOAT8 = torch.float8_e4m3fn
HERE = torch.cuda.is_available()
CARD = Target.of(torch.device("cuda")) if HERE else Target("cuda", (9, 0))


def fast(operator):
    """The operator's variants that are compiled and run on this card."""
    return [v for v in FAST if v in VARIANTS[operator] and not refusal(operator, v, CARD)]


def real(operator, cache=torch.bfloat16, pos=3000):
    """Arguments of the 27B's shapes with 16 rows, random, on the device."""
    caches = {"cache": cache} if operator in ("attention_decode", "qk_rope_store") else {}
    special = {"gated_delta_step": {"pending": 5}, "sample": CUT}
    arguments = make(operator, ROWS, "cuda", **caches, **special.get(operator, {}))
    place = CASES[operator].pos
    if place is not None:
        arguments[place].fill_(pos)
    if operator == "penalize":
        arguments[4].fill_(pos // 2)  # half of the text was written
    return arguments


def cut(operator, arguments, start, stop):
    """The call of some rows alone; big read-only caches are not copied.

    A penalised row counts the drafts before it: those that are cut off move into the text.
    """
    case = CASES[operator]
    shared = operator in ("attention_decode", "kvarn_attention")
    out = list(arguments) if shared else map_tensors(torch.clone, arguments)
    for i in case.rows:
        out[i] = arguments[i][start:stop].clone()
    if case.pos is not None:
        out[case.pos] = arguments[case.pos] + start
    if operator == "penalize":
        pos = int(arguments[1])
        out[3][pos : pos + start] = arguments[2][1 : start + 1]
    return out


SETTINGS = [(op, variant, torch.bfloat16, 3000) for op in BY_ROWS for variant in fast(op)]
SETTINGS += [
    ("attention_decode", variant, cache, pos)
    for variant in fast("attention_decode")
    for cache in (torch.bfloat16, FLOAT8, torch.int8, torch.uint8)
    for pos in (0, 25, 57, 250, 505, 4090, 4220, 200_000)
]
SETTINGS += [
    ("qk_rope_store", variant, cache, 100)
    for variant in fast("qk_rope_store")
    for cache in (FLOAT8, torch.int8, torch.uint8)
]

SETTINGS += [  # the ends of tiles, and where rows begin to see them packed
    ("kvarn_attention", variant, torch.bfloat16, pos)
    for variant in fast("kvarn_attention")
    for pos in (0, 60, 120, 130, 250, 264, 378, 393, 4090, 200_000)
]
SETTINGS += [("kvarn_store", variant, torch.bfloat16, 120) for variant in fast("kvarn_store")]


@pytest.mark.parametrize("operator, variant, cache, pos", SETTINGS, ids=str)
def test_rows_and_places_change_no_bit(operator, variant, cache, pos):
    """Rows at 25 need one split or two, at 250 eight or more, at 4090 and 4220 a round more."""
    call = VARIANTS[operator][variant]
    arguments = real(operator, cache, pos)
    together = cut(operator, arguments, 0, ROWS)
    whole = outputs(call(*together))
    for rows in (1, 2, 4, 8):
        part = cut(operator, arguments, 0, rows)
        for a, b in zip(outputs(call(*part)), whole, strict=True):
            assert a.float().isfinite().all() and torch.equal(a, b[:rows])
        if operator == "gated_delta_step":
            assert torch.equal(part[6], together[6]) and torch.equal(part[7], together[7])
            for i in range(8, 12):
                assert torch.equal(part[i][:rows], together[i][:rows])
    if operator != "gated_delta_step":
        for start in range(ROWS):
            part = outputs(call(*cut(operator, arguments, start, start + 1)))
            for a, b in zip(part, whole, strict=True):
                assert torch.equal(a[0], b[start])


@pytest.mark.parametrize("operator, variant, cache, pos", SETTINGS, ids=str)
def test_replay_and_repetition_change_no_bit(operator, variant, cache, pos):
    call = VARIANTS[operator][variant]
    arguments = real(operator, cache, pos)
    eager = cut(operator, arguments, 0, 8)
    want = outputs(call(*eager))
    captured = cut(operator, arguments, 0, 8)
    start = map_tensors(torch.clone, captured) if operator == "gated_delta_step" else None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = outputs(call(*captured))
    for _ in range(5):
        if start is not None:
            for a, b in zip(captured, start, strict=True):
                if torch.is_tensor(a):
                    a.copy_(b)
        graph.replay()
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)
    if operator in ("gated_delta_step", "qk_rope_store"):
        for a, b in zip(captured, eager, strict=True):
            if torch.is_tensor(a):
                assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.ndim else True


CLOSE = [(op, variant, torch.bfloat16) for op in BY_ROWS if op != "sample" for variant in fast(op)]
CLOSE += [
    (op, variant, cache)
    for op in ("attention_decode", "qk_rope_store")
    for variant in fast(op)
    for cache in (torch.int8, torch.uint8)
]


@pytest.mark.parametrize("operator, variant, cache", CLOSE, ids=str)
def test_as_close_to_float64_as_the_reference(operator, variant, cache):
    arguments = cut(operator, real(operator, cache), 0, 4)
    double = [a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
    reference = VARIANTS[operator]["reference"]
    meaning = BENCHES[operator].meaning
    exact = meaning(outputs(reference(*double)))
    plain = meaning(outputs(reference(*map_tensors(torch.clone, arguments))))
    found = meaning(outputs(VARIANTS[operator][variant](*map_tensors(torch.clone, arguments))))
    for a, b, c in zip(found, plain, exact, strict=True):
        assert_as_close(a, b, c)


@pytest.mark.parametrize("variant", fast("gated_delta_step"))
def test_pending_rows_fold_in_as_if_they_had_run_one_by_one(variant):
    call = VARIANTS["gated_delta_step"][variant]
    whole = cut("gated_delta_step", real("gated_delta_step"), 0, ROWS)
    whole[12].zero_()
    single = map_tensors(torch.clone, whole)
    call(*whole)
    for i in range(ROWS):
        single[12].fill_(min(i, 1))
        call(whole[0][i : i + 1].clone(), whole[1][i : i + 1].clone(), *single[2:])
    whole[12].fill_(ROWS - 1)
    call(whole[0][-1:].clone(), whole[1][-1:].clone(), *whole[2:])
    for i in (6, 7):
        assert torch.equal(whole[i], single[i])
    for i in range(8, 12):
        assert torch.equal(whole[i][0], single[i][0])


@pytest.mark.parametrize("heat, k, p, m", [(0.0, 0, 1, 0), (1, 0, 1, 0), (0.7, 20, 0.8, 0.0)])
def test_drawn_tokens_are_the_reference_s(heat, k, p, m):
    arguments = real("sample")
    for i, value in zip((2, 3, 4, 5), (heat, k, p, m), strict=True):
        arguments[i].fill_(value)
    want = VARIANTS["sample"]["reference"](*arguments)
    assert torch.equal(VARIANTS["sample"]["triton"](*arguments), want)
