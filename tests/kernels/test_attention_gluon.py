"""Narrow caches on Hopper: rows, places and splits change no bit; what is planted is found.

On a GPU compiled, with the 27B's heads; elsewhere Gluon's code over torch.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kernels.attention_decode.bench import inputs
from kernels.codes import TINY
from kernels.define import VARIANTS, Target, refusal
from kernels.registry import choose, fallbacks
from tr.bench import Draw
from tr.testing import assert_as_close

pytest.importorskip("triton")

import kernels.gpu  # noqa: E402
from kernels.attention_decode import gluon_codes, gluon_kernel, gluon_scores  # noqa: E402
from kernels.attention_decode.gluon_kernel import launch  # noqa: E402
from kernels.attention_decode.gluon_plan import plan  # noqa: E402
from tests.kernels.gluon_on_cpu import launches  # noqa: E402

TABLE = VARIANTS["attention_decode"]
FORMATS = {"float8": torch.float8_e4m3fn, "int8": torch.int8, "int4": torch.uint8}
NARROW = {"d_head": 256, "narrow d_head": 256, "capacity": 8192}
HOPPER, AMPERE = Target("cuda", (9, 0)), Target("cuda", (8, 6))
HERE = torch.cuda.is_available()
FITS = HERE and not refusal("attention_decode", "gluon", Target.of(torch.device("cuda")), [NARROW])
CPU = torch.device("cpu")


def made(form: str, rows: int, pos: int, heads: int = 12, device: str = "cpu") -> list[Any]:
    kv_heads, dtype = (4, torch.bfloat16) if device == "cuda" else (2, torch.float16)
    draw = Draw(device, dtype)
    return inputs(draw, rows, heads, kv_heads, 256, pos=pos, cache=FORMATS[form])


def part(arguments: list[Any], first: int, last: int) -> list[Any]:
    """The call of rows first .. last - 1 alone."""
    q, gate, k, v, pos, *scales = arguments
    return [q[first:last].clone(), gate[first:last].clone(), k, v, pos + first, *scales]


def on_cpu(form: str, arguments: list[Any], **changes: Any) -> Tensor:
    """With 3 splits, so that several blocks, splits and folds fit into few keys."""
    q, k = arguments[0], arguments[2]
    chosen = plan(CPU, k.shape[0], q.shape[0] * q.shape[1] // k.shape[0])
    chosen = replace(chosen, **{"splits": 3, "waiting": 5, **changes})
    with patch.object(kernels.gpu, "INTERPRETED", True), launches():
        q, gate, k, v, pos, k_scale, v_scale = arguments
        return launch(q, gate, k, v, pos, chosen, form, k_scale, v_scale)


def check(y: Tensor, arguments: list[Any]) -> None:
    """As close to float64 as the reference is."""
    real = [a is not None and a.is_floating_point() for a in arguments]
    double = [a.double() if on else a for a, on in zip(arguments, real, strict=True)]
    coded = torch.float8_e4m3fn
    plain = [
        a.to(arguments[0].dtype) if a is not None and a.dtype == coded else a for a in arguments
    ]
    assert_as_close(y, TABLE["reference"](*plain), TABLE["reference"](*double))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows, pos", [(1, 0), (5, 505), (16, 700)])
def test_rows_are_close_and_know_nothing_of_each_other(form, rows, pos):
    """A program of 16, 48 or 96 columns; one split, all of them, and a second round of each."""
    arguments = made(form, rows, pos)
    y = on_cpu(form, arguments)
    check(y, arguments)
    for first, last in {(rows - 1, rows), (0, min(rows, 6))}:
        alone = on_cpu(form, part(arguments, first, last))
        assert torch.equal(alone, y[first:last])
    assert torch.equal(on_cpu(form, arguments, waiting=1), y)  # the last to arrive folds


@pytest.mark.parametrize("form", ["int8"])
def test_more_vectors_than_a_program_has_columns(form):
    """24 heads to a key-value head: rows of several programs, and a row that two share."""
    arguments = made(form, 5, 300, heads=48)
    y = on_cpu(form, arguments)
    assert plan(CPU, 2, 5 * 24).parts == (64, 32)
    check(y, arguments)
    for row in (0, 2, 4):
        assert torch.equal(on_cpu(form, part(arguments, row, row + 1)), y[row : row + 1])


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("factor", [2.0**-60, 2.0**8])
def test_a_scale_s_size_changes_no_answer(form, factor):
    """Rows of zeros among others; values that are large or tiny all over."""
    arguments = made(form, 2, 260)
    q, gate, k, v, pos, k_scale, v_scale = arguments
    arguments[:2] = q.bfloat16(), gate.bfloat16()
    v_scale *= factor
    for codes, scale in ((k, k_scale), (v, v_scale)):
        codes[:, 100:140] = 0x88 if form == "int4" else 0
        scale[:, 100:140] = TINY
    check(on_cpu(form, arguments), arguments)


def test_keys_past_the_live_ones_weigh_nothing():
    arguments = made("int8", 4, 200)
    y = on_cpu("int8", arguments)
    for x in arguments[2:4]:
        x[:, 204:] = 127
    for scale in arguments[5:]:
        scale[:, 204:] = 0.0
    assert torch.equal(on_cpu("int8", arguments), y)
    arguments[6][:, 204:] = 1e9
    assert torch.equal(on_cpu("int8", arguments), y)


def dims_swapped(product, i, form):
    d = kept_dims(product, i, form)
    return d + torch.where(d % 4 == 0, 1, torch.where(d % 4 == 1, -1, 0))


def one_block_early(tiles, line, n, rounds, ring, full, splits, ahead):
    return kept_bring(tiles, line, n, min(int(rounds), 1), ring, full, splits, ahead)


def one_key_more(s, peak, total, factors, scale, partial, first, limit, *others):
    return kept_weigh(s, peak, total, factors, scale, partial, first, limit + 1, *others)


kept_dims, kept_bring, kept_weigh = (
    fn.fn for fn in (gluon_codes._dims, gluon_kernel._bring, gluon_scores.weigh)
)


@pytest.mark.parametrize(
    "name, wrong, complaint",
    [
        ("_dims", dims_swapped, AssertionError),
        ("weigh", one_key_more, AssertionError),
        ("_bring", one_block_early, TimeoutError),
    ],
)
def test_planted_faults_are_found(name: str, wrong: Callable, complaint: type, monkeypatch):
    """A wrong order of dims, a key too many, a block that never comes."""
    import tests.kernels.gluon_on_cpu as emulator

    monkeypatch.setattr(emulator, "PATIENCE", 0.5)
    plain = emulator.plain

    def planted(fn, stand_ins, scopes):
        out = plain(fn, stand_ins, scopes)
        scope = out.__globals__
        if scope.get(name) is not wrong and name in scope:
            globals()[f"kept_{name.removeprefix('_')}"] = scope[name]
            scope[name] = wrong
        return out

    monkeypatch.setattr(emulator, "plain", planted)
    arguments = made("int8", 2, 1500)
    with pytest.raises(complaint):
        check(on_cpu("int8", arguments), arguments)


@pytest.mark.parametrize("form", FORMATS)
def test_one_live_key_gives_its_values_whatever_the_scores(form):
    arguments = made(form, 1, 0)
    arguments[1].fill_(30.0)  # a gate that is 1
    y = on_cpu(form, arguments)
    check(y, arguments)
    arguments[0].neg_()
    assert torch.equal(on_cpu(form, arguments), y)


def test_auto_takes_it_for_narrow_caches_on_hopper_alone():
    def picked(target, *sizes, choice="auto"):
        return choose(choice, {}, target, {"attention_decode": sizes})["attention_decode"]

    plain = {"d_head": 256, "capacity": 8192}
    assert picked(HOPPER, NARROW) == picked(HOPPER, NARROW, choice="gluon") == "gluon"
    assert picked(HOPPER, plain) == picked(HOPPER, plain, choice="gluon") == "triton"
    assert picked(HOPPER, NARROW, plain) == picked(HOPPER) == "triton"
    assert picked(HOPPER, {**NARROW, "d_head": 128, "narrow d_head": 128}) == "triton"
    assert picked(AMPERE, NARROW) == "triton" and picked(Target(), NARROW) == "tile"
    for choice in ("auto", "gluon"):
        said = fallbacks(choice, {}, HOPPER, {"attention_decode": [plain]})
        assert not any("attention_decode" in line for line in said)
    with pytest.raises(ValueError, match="is for caches of 8 or 4 bits; use kernel.att.*=triton"):
        choose("auto", {"attention_decode": "gluon"}, HOPPER, {"attention_decode": [plain]})


def test_what_it_cannot_do_is_refused_by_name():
    q, gate, k, v, pos, *_ = made("float8", 1, 0)
    with patch.object(kernels.gpu, "INTERPRETED", True):
        with pytest.raises(ValueError, match="gluon needs a cache of 8 or 4 bits.* got torch.flo"):
            TABLE["gluon"](q, gate, k.half(), v.half(), pos)
        with pytest.raises(ValueError, match="heads of 256 dims .* 12 of 128 over 2 and 512"):
            TABLE["gluon"](
                q[..., :128].clone(), gate, k[..., :128].clone(), v[..., :128].clone(), pos
            )


def test_the_loop_keeps_to_its_registers_and_instructions():
    """8 rows: no spill; 16: a few addresses. Codes are converted once, whatever the rows."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.attention_compiled"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(line["form"], line["rows"]) for line in lines]
    assert found == [("float8", 8), ("int8", 16), ("int4", 8)]
    for line in lines:
        eight = line["rows"] == 8
        assert line["stack_bytes"] <= (0 if eight else 128), line
        assert line["spills_in_loop"] <= (0 if eight else 20), line
        assert line["shared_bytes"] <= 232_448 and line["early"] == 0, line
        assert line["wgmma"] == 2 * 32, line  # of two parts' columns
        assert line["instructions"] <= (1400 if eight else 1900), line


@pytest.mark.gpu
@pytest.mark.skipif(not FITS, reason="needs compute capability 9.0")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("pos", [0, 25, 57, 250, 505, 4100, 4220, 33_000])
def test_on_the_card_rows_places_and_replay_change_no_bit(form, pos):
    call = TABLE["gluon"]
    arguments = made(form, 16, pos, 24, "cuda")
    y = call(*arguments)
    if pos < 10_000:
        check(y, arguments)
    for rows in (1, 2, 3, 8, 9):
        for first in (0, 16 - rows):
            got = call(*part(arguments, first, first + rows))
            assert torch.equal(got, y[first : first + rows])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = call(*arguments)
    for _ in range(5):
        graph.replay()
        assert torch.equal(again, y)
