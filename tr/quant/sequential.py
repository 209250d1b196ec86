"""Layer by layer: each part is quantised on what the parts before it, quantised, give it.

The calibration tokens run through the model a batch of sequences at a time; the residual stream of
all of them is held between layers, and so is that of the unquantised model where a recipe asks for
it. The head comes last, on the normed hidden states; then the multi-token-prediction head.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.rms_norm import rms_norm
from tr.model import layer, mtp, text
from tr.nn.formats.dense import Dense
from tr.quant.hessian import Moments, matrices, observe, replace_matrices, stages
from tr.quant.numbers import numbers
from tr.tree import unchecked

T = TypeVar("T")
#: (matrix, its moments or None) -> the coded matrix
Convert = Callable[[Dense, Moments | None], Any]


class Shelf(Protocol):
    """Where finished parts are kept, so that an interrupted run goes on from them."""

    def get(self, name: str, like: T) -> T | None: ...

    def put(self, name: str, part: Any) -> None: ...


class Nowhere:
    """Keeps nothing."""

    def get(self, name: str, like: T) -> T | None:
        return None

    def put(self, name: str, part: Any) -> None:
        return None


@dataclass(frozen=True)
class Plan:
    """`calibrated`: moments are gathered; `asymmetric`: beside those of the unquantised model.

    `stepwise`: within a part too, later matrices are quantised on what the earlier ones give them.
    `dtype` of the activations; `batch` sequences at a time. Without `with_head` and `with_mtp`
    those heads stay as they are.
    """

    convert: Convert
    calibrated: bool
    asymmetric: bool
    stepwise: bool = False
    dtype: torch.dtype = torch.float32
    batch: int = 8
    with_head: bool = True
    with_mtp: bool = True

    def parts(self, params: text.Params, head: mtp.Params | None) -> list[str]:
        """Names of the parts in the order they are done."""
        names = [f"layers[{i}]" for i in range(len(params.layers))]
        names += ["lm_head"] if self.with_head else []
        return names + (["mtp"] if self.with_mtp and head is not None else [])


class Stream:
    """What every sequence has come to, by batches: `x` behind the quantised parts, and `right` as
    the unquantised model has it, where the plan asks for it.
    """

    def __init__(self, plan: Plan, shelf: Shelf, x: list[Any]) -> None:
        self.plan, self.shelf = plan, shelf
        self.x = x if plan.calibrated else []
        self.right = list(x) if plan.asymmetric else None

    def quantise(self, name: str, part: T, run: Callable[[T, Any], Any], onward: bool) -> T:
        """The quantised `part`; with `onward` the stream goes through it."""
        plan, outputs = self.plan, None
        done = self.shelf.get(name, part)
        if done is None:
            done, outputs = self.convert(part, run)
            self.shelf.put(name, done)
        if onward:
            restored = numbers(done, plan.dtype)
            self.x = [run(restored, x) for x in self.x]
            if self.right is not None:
                whole = numbers(part, plan.dtype)
                self.right = outputs or [run(whole, x) for x in self.right]
        return done

    def convert(self, part: T, run: Callable[[T, Any], Any]) -> tuple[T, list[Any] | None]:
        """The quantised `part`, and what the unquantised one makes of `right`, where known.

        Stepwise, matrices that read other inputs than the ones before them are observed anew.
        """
        plan = self.plan
        if not plan.calibrated:
            return replace_matrices(part, lambda _, m: plan.convert(m, None)), None
        whole = numbers(part, plan.dtype)
        left = stages(whole, run, self.x[0]) if plan.stepwise else [list(matrices(part))]
        done, outputs = part, None
        for names in left:
            now = numbers(done, plan.dtype)
            moments, outputs = observe(now, whole, names, run, self.x, self.right)
            done = replace_matrices(
                done,
                lambda key, m, names=names, moments=moments: (
                    plan.convert(m, moments[key]) if key in names else m
                ),
            )
        return done, outputs

    def change(self, fn: Callable[[int, Any], Any]) -> None:
        """fn(batch number, its stream) in place of the stream."""
        self.x = [fn(i, x) for i, x in enumerate(self.x)]
        if self.right is not None:
            self.right = [fn(i, x) for i, x in enumerate(self.right)]


def sequential(
    params: text.Params,
    head: mtp.Params | None,
    tokens: Tensor,
    plan: Plan,
    shelf: Shelf | None = None,
) -> Iterator[tuple[str, Any]]:
    """(name, quantised part) of each of `plan.parts`; tokens [sequences, n] int64."""
    dtype, rope = plan.dtype, numbers(params.rope, plan.dtype)
    batches = tokens.split(plan.batch)

    def forward(p: layer.Params, x: Tensor) -> Tensor:
        return layer.sequence(p, layer.init_past(p, len(x)), x, rope, "chunk")[0]

    def pairs(p: mtp.Params, own: tuple[Tensor, Tensor]) -> Tensor:
        ids, hidden = own
        past = layer.init_past(p.layer, len(ids))
        return mtp.sequence(p, past, params.embed.to(dtype), ids[:, 1:], hidden[:, :-1], rope)[0]

    def output(p: Dense, hidden: Tensor) -> Tensor:
        return p.sequence(hidden)

    with torch.inference_mode(), unchecked():
        x = [F.embedding(ids, params.embed).to(dtype) for ids in batches]
        stream = Stream(plan, shelf or Nowhere(), x)
    for i, own in enumerate(params.layers):
        with torch.inference_mode(), unchecked():
            done = stream.quantise(f"layers[{i}]", own, forward, onward=True)
        yield f"layers[{i}]", done
    norm = params.norm.to(dtype)
    with torch.inference_mode(), unchecked():
        stream.change(lambda i, x: rms_norm(x, norm, params.eps))
    if plan.with_head:
        with torch.inference_mode(), unchecked():
            done = stream.quantise("lm_head", params.head, output, onward=False)
        yield "lm_head", done
    if plan.with_mtp and head is not None:
        with torch.inference_mode(), unchecked():
            stream.change(lambda i, hidden: (batches[i], hidden))
            done = stream.quantise("mtp", head, pairs, onward=False)
        yield "mtp", done


def assembled(
    params: text.Params, head: mtp.Params | None, done: dict[str, Any]
) -> tuple[text.Params, mtp.Params | None]:
    """The model with its quantised parts put in.

    A head that was the embedding itself is a matrix of its own then; the embedding stays.
    """
    layers = tuple(done[f"layers[{i}]"] for i in range(len(params.layers)))
    lm_head = done.get("lm_head", params.lm_head)
    with unchecked():  # a format that decoding cannot take yet may be among them
        whole = dataclasses.replace(params, layers=layers, lm_head=lm_head)
    return whole, done.get("mtp", head)
