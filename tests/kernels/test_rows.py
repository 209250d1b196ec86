"""A row's bits depend neither on how many rows are computed with it nor on its place among them."""

import functools

import pytest
import torch

from kernels.benches import BENCHES
from tests.kernels.cases import BY_ROW, CASES, COVERED, ROWS, outputs, table
from tr.testing import assert_as_close

DTYPES = [torch.bfloat16, torch.float32]
#: rows of either dtype become the same codes, and the interpreter is slow
BY_DTYPE = [
    (operator, variant, dtype)
    for operator, variant in BY_ROW
    for dtype in DTYPES
    if CASES[operator].name == CASES[operator].operator or (variant, dtype) != ("triton", DTYPES[1])
]


@functools.cache
def all_rows(operator, variant, dtype):
    case = CASES[operator]
    return outputs(table(operator)[variant](*case.cut(case.arguments(dtype), 0, ROWS)))


@pytest.mark.parametrize("operator, variant, dtype", BY_DTYPE, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_fewer_rows(operator, variant, dtype, rows):
    case, call = CASES[operator], table(operator)[variant]
    part = outputs(call(*case.cut(case.arguments(dtype), 0, rows)))
    for a, b in zip(part, all_rows(operator, variant, dtype), strict=True):
        assert a.isfinite().all() and torch.equal(a, b[:rows])


@pytest.mark.parametrize(
    "operator, variant, dtype", [c for c in BY_DTYPE if c[0] != "gated_delta_step"], ids=str
)
@pytest.mark.parametrize("rows", [1, 3])
def test_any_place(operator, variant, dtype, rows):
    """Rows taken out of the middle of a block (recurrent rows: tests/model/test_rows.py)."""
    case, call = CASES[operator], table(operator)[variant]
    arguments = case.arguments(dtype)
    if case.operator == "attention_decode":
        arguments[4] = torch.tensor(505)  # the block crosses a multiple of 512
    whole = outputs(call(*case.cut(arguments, 0, ROWS)))
    for start in range(0, ROWS - rows + 1, 5 if variant == "triton" else 1):  # slow here
        part = outputs(call(*case.cut(arguments, start, start + rows)))
        for a, b in zip(part, whole, strict=True):
            assert torch.equal(a, b[start : start + rows])


@pytest.mark.parametrize("operator, variant", BY_ROW)
def test_written_buffers_do_not_depend_on_the_row_count(operator, variant):
    """What one row leaves in caches and records equals what it leaves among sixteen."""
    case, call = CASES[operator], table(operator)[variant]
    arguments = case.arguments(torch.bfloat16)
    alone, together = case.cut(arguments, 0, 1), case.cut(arguments, 0, ROWS)
    call(*alone)
    call(*together)
    if case.operator == "qk_rope_store":
        row = int(arguments[5])
        for i in (6, 7, 9, 10)[: 2 if arguments[9] is None else 4]:
            assert torch.equal(alone[i][:, : row + 1], together[i][:, : row + 1])
            assert torch.equal(alone[i][:, row + ROWS :], arguments[i][:, row + ROWS :])
    elif operator == "kvarn_store":
        row = int(arguments[5])
        for i in (6, 7):
            changed = (together[i] != arguments[i]).any(-1).all((0, 1)).nonzero()[:, 0].tolist()
            assert changed == ([*range(row, 128)], [*range(128, row + ROWS)])[i - 6]
            one = slice(row, row + 1) if i == 6 else slice(0, 0)
            assert torch.equal(alone[i][:, :, one], together[i][:, :, one])
            rest = [j for j in range(alone[i].shape[2]) if i == 7 or j != row]
            assert torch.equal(alone[i][:, :, rest], arguments[i][:, :, rest])
    elif operator == "gated_delta_step":
        assert torch.equal(alone[6], together[6]) and torch.equal(alone[7], together[7])
        for i in range(8, 12):
            assert torch.equal(alone[i][0], together[i][0])
    else:
        for i, argument in enumerate(arguments):
            if i not in case.rows and isinstance(argument, torch.Tensor):
                assert torch.equal(alone[i], argument) and torch.equal(together[i], argument)


DRAWN = {"sample", "dflash_select"}  # tokens: equal, or not
CLOSE = [(name, dtype) for name in sorted(set(CASES) - DRAWN) for dtype in DTYPES]
CLOSE.remove(("matmul", torch.float32))  # one row's library sums are more exact than a tile's
for name in [name for name in CASES if name.startswith("int4_")]:
    CLOSE.remove((name, torch.float32))  # tests/kernels/test_int4_matmul.py has its bound


@pytest.mark.parametrize("operator, dtype", CLOSE)
def test_variants_are_as_close_to_float64_as_the_reference(operator, dtype):
    case, variants = CASES[operator], table(operator)
    arguments = case.arguments(dtype)
    double = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in arguments
    ]
    meaning = BENCHES[case.operator].meaning
    exact = meaning(outputs(variants["reference"](*case.cut(double, 0, ROWS))))
    reference = meaning(outputs(variants["reference"](*case.cut(arguments, 0, ROWS))))
    for call in (variants[name] for op, name in COVERED if op == operator):
        found = meaning(outputs(call(*case.cut(arguments, 0, ROWS))))
        for a, b, c in zip(found, reference, exact, strict=True):
            assert_as_close(a, b, c)


def test_tile_matmul_with_resident_float32_weights():
    case, call = CASES["matmul"], table("matmul")["tile"]
    x, weight, splits = case.arguments(torch.bfloat16)
    whole = call(x, weight.float(), splits)
    assert whole.dtype == torch.bfloat16
    for i in range(ROWS):
        assert torch.equal(call(x[i : i + 1], weight.float(), splits)[0], whole[i])
    exact = x.double() @ weight.double().T
    assert (whole - exact).abs().max() <= 2**-8 * exact.abs().max()
