"""Each variant as a `torch.library` operator: schema, mutation set, fake form, compiled use."""

import pytest
import torch

from kernels.define import VARIANTS
from tests.kernels.cases import CASES, COVERED, outputs, table
from tr.tree import map_tensors


@pytest.mark.parametrize("operator, variant", COVERED)
def test_opcheck(operator, variant):
    case, call = CASES[operator], table(operator)[variant]
    for dtype in (torch.bfloat16, torch.float32)[: 1 if variant == "triton" else 2]:
        torch.library.opcheck(call.op, tuple(case.cut(case.arguments(dtype), 0, 3)))


@pytest.mark.parametrize("operator, variant", COVERED)
def test_outputs_are_fresh_tensors(operator, variant):
    """A result that shared storage with an argument would break compiled callers."""
    case, call = CASES[operator], table(operator)[variant]
    for rows in (1, 16):
        arguments = case.cut(case.arguments(torch.float32), 0, rows)
        storages = {a.untyped_storage().data_ptr() for a in arguments if torch.is_tensor(a)}
        for out in outputs(call(*arguments)):
            assert out.untyped_storage().data_ptr() not in storages


def test_one_head_of_queries_gets_fresh_tensors_too():
    d = 32
    qkv, cache = torch.randn(1, 4 * d), torch.zeros(1, 8, d)
    tables = torch.ones(8, 4), torch.zeros(8, 4)
    arguments = (qkv, torch.zeros(d), torch.zeros(d), *tables, torch.tensor(0))
    call = VARIANTS["qk_rope_store"]["reference"]
    torch.library.opcheck(call.op, (*arguments, cache, cache.clone(), 1e-6, None, None))


@pytest.mark.parametrize("variant", [v for op, v in COVERED if op == "gated_delta_step"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_snapshot_survives_compiled_mutation(variant, backend):
    """A clone of the state, taken before the state is advanced, must not be optimised away."""
    case, call = CASES["gated_delta_step"], VARIANTS["gated_delta_step"][variant]
    arguments = case.cut(case.arguments(torch.float32), 0, 2)

    def advance(*arguments):
        keep = arguments[6].clone()
        y = call(*arguments)
        return keep, y, arguments[6] - keep, arguments[7] * 1

    eager, compiled = (map_tensors(torch.clone, arguments) for _ in range(2))
    want = advance(*eager)
    torch._dynamo.reset()
    got = torch.compile(advance, backend=backend, fullgraph=True)(*compiled)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(want[0], arguments[6]) and not torch.equal(eager[6], arguments[6])
    for a, b in zip(compiled, eager, strict=True):
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b
