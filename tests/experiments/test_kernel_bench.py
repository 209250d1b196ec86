"""Every operator is measured, after it has proved right; what is wrong or refused is named."""

import pytest
import torch

from experiments import kernel_bench
from experiments.ceilings import ceilings
from kernels.benches import BENCHES
from kernels.define import VARIANTS
from kernels.int4_matmul.others import OTHERS
from tests.experiments.runs import record_of
from tr.bench import Draw
from tr.overrides import load

SMALL = ("model=smoke", "weights=random", "device=cpu", "params.rounds=1", "params.cold_bytes=0")


def run(tmp_path, *args):
    return record_of(tmp_path, "+exp=kernel_bench", *SMALL, *args)


def test_every_operator_and_plain_variant_is_measured(tmp_path):
    record = run(tmp_path, "params.variants=[reference,tile]", "params.rows=[1,16]")
    figures, shape = record["figures"], load(["model=smoke", "prompt=x"], "generate").model.spec()
    assert record["warnings"] == []
    for operator, bench in BENCHES.items():
        plain = set(VARIANTS[operator]) & {"reference", "tile"}
        assert set(figures[operator]) == plain
        for cases in figures[operator].values():
            assert set(cases) == {f"{c} r{n}" for c in bench.cases(shape) for n in (1, 16)}
            for values in cases.values():
                assert values["gb_per_s"] == pytest.approx(values["bytes"] / values["us"] * 1e-3)
                share = values["gb_per_s"] / figures["wall_gb_per_s"]
                assert values["wall_fraction"] == pytest.approx(share)
    assert record["device"]["copy_gb_per_s"] > 0 and record["device"]["matmul_tflops"] > 0
    assert (tmp_path / "out" / "int4.png").exists()


@pytest.mark.interpreter
def test_a_triton_variant_is_checked_and_timed(tmp_path):
    record = run(tmp_path, "params.operators=[silu_mul,rms_norm]", "params.rows=[1]")
    assert {"triton", "reference"} <= set(record["figures"]["silu_mul"])


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda y: y + 1, "result 0 is off by"),
        (lambda y: y * torch.nan, "result 0 is off by inf"),
        (lambda y: y.float(), "result 0 is torch.float32"),
        (lambda y: y[:, :-1], "result 0 is torch.bfloat16"),
    ],
)
def test_a_wrong_kernel_is_found_out(change, complaint):
    arguments = BENCHES["silu_mul"].inputs(Draw("cpu"), 3, d=64)
    call = VARIANTS["silu_mul"]["reference"]
    right = kernel_bench.Right("silu_mul", arguments)
    assert not right.complaint(call)
    assert complaint in right.complaint(lambda x: change(call(x)))


def test_what_a_kernel_overwrites_is_checked_too():
    sizes = {"k_heads": 1, "v_heads": 2, "d_k": 32, "d_v": 32, "width": 4, "pending": 1}
    arguments = BENCHES["gated_delta_step"].inputs(Draw("cpu"), 2, **sizes)
    before = [a.clone() if torch.is_tensor(a) else a for a in arguments]
    call = VARIANTS["gated_delta_step"]["tile"]
    right = kernel_bench.Right("gated_delta_step", arguments)

    def spoiled(*args):
        y = call(*args)
        args[6].add_(1)  # the checkpoint
        return y

    assert kernel_bench.written("gated_delta_step") == [6, 7, 8, 9, 10, 11]
    assert not right.complaint(call) and "result 1 is off" in right.complaint(spoiled)
    for a, b in zip(arguments, before, strict=True):
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b


def test_a_wrong_variant_is_a_warning_and_has_no_figure(tmp_path, monkeypatch):
    monkeypatch.setitem(VARIANTS["silu_mul"], "tile", _wrong(VARIANTS["silu_mul"]["tile"]))
    args = ("params.operators=[silu_mul]", "params.variants=[tile]", "params.rows=[1]")
    record = run(tmp_path, *args)
    assert "silu_mul" not in record["figures"]
    assert record["warnings"][0].startswith("silu_mul.tile, d_ff r1 is wrong and not timed")


def _wrong(call):
    def wrong(x):
        return 2 * call(x)

    wrong.support = call.support
    return wrong


def test_other_libraries_kernels_stand_beside_ours(tmp_path):
    args = "params.operators=[int4_matmul]", "params.others=[tinygemm,dense,gemlite]"
    record = run(tmp_path, *args, "params.variants=[tile]", "params.rows=[1,8]")
    ours, others = record["figures"]["int4_matmul"]["tile"], record["figures"]["others"]
    assert set(others) == {"tinygemm", "dense"}
    for cases in others.values():
        assert set(cases) == set(ours)
    for case in ours:
        assert others["dense"][case]["bytes"] > 2 * ours[case]["bytes"]
        assert others["tinygemm"][case]["bytes"] < 1.1 * ours[case]["bytes"]
    assert record["warnings"] == ["gemlite needs cuda, this is cpu, so it is left out"]


def test_another_library_s_wrong_result_is_found_out():
    arguments = BENCHES["int4_matmul"].inputs(Draw("cpu"), 3, splits=[128], k=256)
    right = kernel_bench.Right("int4_matmul", arguments)
    x, tiles, _ = arguments
    packed, pairs = OTHERS["tinygemm"].weights(tiles, 128)
    call = OTHERS["tinygemm"].call
    assert not kernel_bench.complaint_of_other(call(x, packed, pairs), right)
    pairs[..., 1] += pairs[..., 0] / 2  # half a code more
    assert "off by" in kernel_bench.complaint_of_other(call(x, packed, pairs), right)
    assert "not torch.bfloat16" in kernel_bench.complaint_of_other(torch.zeros(3, 128), right)


@pytest.mark.parametrize(
    "argument, complaint",
    [
        ("params.others=[tinygem]", "did you mean 'tinygemm'"),
        ("params.operators=[silu_mull]", "did you mean 'silu_mul'"),
        ("params.variants=[tritn]", "did you mean 'triton'"),
        ("params.rows=[17]", r"must lie in 1\.\.16, got 17"),
    ],
)
def test_bad_options_are_named(tmp_path, argument, complaint):
    with pytest.raises(ValueError, match=complaint):
        run(tmp_path, argument)


def test_the_ceilings_of_a_device(device):
    found = ceilings(torch.device(device))
    names = {"read_gb_per_s", "copy_gb_per_s", "matmul_tflops"}
    assert set(found) == names | ({"graph_node_us"} if device == "cuda" else set())
    assert all(value > 0 for value in found.values())


@pytest.mark.interpreter
def test_the_reader_reads_everything_once():
    from experiments.streaming import BLOCK, read

    x = torch.ones(5 * BLOCK)
    out = torch.empty(2)
    read(x, out)
    assert out.tolist() == [3 * BLOCK, 2 * BLOCK]
    with pytest.raises(ValueError, match="whole blocks"):
        read(x[1:], out)
