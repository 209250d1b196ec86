"""What belongs to which operator: by place, by name, or to none."""

from collections import Counter

import pytest
import torch

from experiments.trace import OTHER, Kernel, Trace, counted, owners_of, record, scoped, split
from kernels.registry import select

OPS = select("reference")


def kernels(*names, us=2):
    return [Kernel(name, 10_000 * i, 10_000 * i + 1000 * us) for i, name in enumerate(names)]


def test_operators_on_a_cpu_are_seen_in_order():
    ops, x = scoped(OPS), torch.randn(2, 64)

    def step():
        ops.rms_norm(ops.silu_mul(x), torch.zeros(32), 1e-6)

    traces = [record(step, torch.device("cpu")) for _ in range(3)]
    for trace in traces:
        assert [k.name for k in trace.scopes] == ["silu_mul", "rms_norm"] and not trace.kernels
    parts = split([trace.scopes for trace in traces], ["silu_mul", "rms_norm"])
    assert parts.launches == {"silu_mul": 1, "rms_norm": 1}
    assert all(us > 0 for us in parts.us.values())


def test_bytes_are_counted_per_operator():
    moved = Counter()
    x = torch.randn(2, 64)
    for _ in range(2):
        counted(OPS, moved).silu_mul(x)
    assert moved == {"silu_mul": 2 * x.nbytes * 3 // 2}


@pytest.mark.gpu
def test_kernels_on_a_card_belong_to_their_operators(monkeypatch):
    """Triton operators launch one kernel each, once `torch.empty` fills nothing."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    ops = scoped(select("triton", device=torch.device("cuda")))
    x, gain = torch.randn(2, 64, device="cuda"), torch.zeros(32, device="cuda")

    def step():
        ops.rms_norm(ops.silu_mul(x) + 1, gain, 1e-6)

    step()
    trace = record(step, torch.device("cuda"))
    assert trace.owners == ("silu_mul", OTHER, "rms_norm")


def test_a_replay_of_the_same_kernels_is_matched_by_place():
    seen = kernels("dot", "sum", "dot")
    eager = Trace((), tuple(seen), ("matmul", "matmul", "attention_decode"))
    assert owners_of(seen, eager) == ["matmul", "matmul", "attention_decode"]


def test_another_sequence_is_matched_by_name():
    eager = Trace((), tuple(kernels("dot", "norm", "dot")), ("matmul", "rms_norm", "matmul"))
    assert owners_of(kernels("fused", "dot", "norm"), eager) == [OTHER, "matmul", "rms_norm"]


def test_medians_over_steps_and_lost_kernels():
    steps = [kernels("a", "b", us=us) for us in (2, 4, 9)]
    parts = split(steps, ["x", "x"])
    assert parts.us == {"x": 8.0} and parts.launches == {"x": 2}
    with pytest.raises(RuntimeError, match=r"steps of 2 launches were seen with \[1, 2\]"):
        split([*steps, kernels("a")], ["x", "x"])
