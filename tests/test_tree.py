"""Typed pytrees: structure, key paths, and when annotations are checked."""

import dataclasses

import pytest
import torch
from jaxtyping import Float, Int64, TypeCheckError
from torch import Tensor
from torch.utils import _pytree as pytree

from tr.tree import map_tensors, replace_tensors, static, tensors, tree, typed, unchecked


@tree
class Leaf:
    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None
    width: int = static()


@tree
class Branch:
    leaves: tuple[Leaf, ...]
    scale: Float[Tensor, ""]


def leaf(out: int = 2, width: int = 3) -> Leaf:
    return Leaf(weight=torch.ones(out, 3), bias=torch.zeros(out), width=width)


def branch() -> Branch:
    return Branch(leaves=(leaf(), leaf(4)), scale=torch.tensor(1.0))


@typed
def double(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x + y


@typed
def wrong(x: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    return x


def test_static_fields_are_structure():
    flat, spec = pytree.tree_flatten(leaf())
    assert len(flat) == 2 and all(isinstance(x, Tensor) for x in flat)
    assert spec == pytree.tree_flatten(leaf())[1]
    assert spec != pytree.tree_flatten(leaf(width=4))[1]
    made = map_tensors(lambda t: t + 1, leaf(width=7))
    assert made.width == 7 and made.weight.eq(2).all()


def test_names_are_key_paths():
    assert list(tensors(branch())) == [
        "leaves[0].weight",
        "leaves[0].bias",
        "leaves[1].weight",
        "leaves[1].bias",
        "scale",
    ]
    none = Leaf(weight=torch.ones(2, 3), bias=None, width=3)
    assert list(tensors(none)) == ["weight"]
    assert map_tensors(torch.clone, none).bias is None


def test_replacing_by_name():
    old = branch()
    new = replace_tensors(old, {"leaves[1].weight": torch.full((4, 3), 5.0)})
    assert new.leaves[1].weight.eq(5).all() and old.leaves[1].weight.eq(1).all()
    assert new.leaves[0].weight is old.leaves[0].weight and new.leaves[1].width == 3


def test_trees_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        leaf().width = 4  # type: ignore[misc]
    assert dataclasses.replace(leaf(), width=4).width == 4


@pytest.mark.parametrize(
    "weight, bias",
    [
        (torch.ones(2), torch.zeros(2)),
        (torch.ones(2, 3), torch.zeros(3)),
        (torch.ones(2, 3, dtype=torch.int64), torch.zeros(2)),
        (None, torch.zeros(2)),
    ],
)
def test_constructors_check_shapes_and_dtypes(weight, bias):
    with pytest.raises(TypeCheckError, match="Leaf|__init__"):
        Leaf(weight=weight, bias=bias, width=3)
    with unchecked():
        assert Leaf(weight=weight, bias=bias, width=3).width == 3


def test_leaves_may_become_other_things():
    """Mapping builds without checks: a tree of shapes or of dtypes is no error."""
    shapes = pytree.tree_map(lambda t: tuple(t.shape), leaf())
    assert shapes.weight == (2, 3) and shapes.bias == (2,)


def test_calls_check_arguments_and_results():
    assert double(torch.ones(3), torch.ones(3)).eq(2).all()
    with pytest.raises(TypeCheckError, match="double"):
        double(torch.ones(3), torch.ones(4))
    with pytest.raises(TypeCheckError, match="wrong"):
        wrong(torch.ones(3))


def test_unchecked_nests_and_ends():
    with unchecked():
        with unchecked():
            assert wrong(torch.ones(3)).shape == (3,)
        assert wrong(torch.ones(3)).shape == (3,)
    with pytest.raises(TypeCheckError):
        wrong(torch.ones(3))
    with pytest.raises(ZeroDivisionError), unchecked():
        raise ZeroDivisionError
    with pytest.raises(TypeCheckError):
        wrong(torch.ones(3))


def test_axes_bind_within_one_call():
    @typed
    def first(x: Leaf, tokens: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
        return torch.zeros(len(tokens))

    for n in (1, 5):
        assert first(leaf(n + 1), torch.arange(n)).shape == (n,)


def test_compiled_code_sees_the_bare_function():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: double(x, x) + 1, backend="eager", fullgraph=True)
    assert compiled(torch.ones(3)).eq(3).all()
    made = torch.compile(lambda t: map_tensors(torch.exp, t), backend="eager", fullgraph=True)
    assert made(leaf()).bias.eq(1).all()
