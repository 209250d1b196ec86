"""Places without a draft, strategies that change between steps, and steps that ask no host."""

import dataclasses
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.decode.small import IDS, dflash2_draft, model, mtp_draft
from tests.drafts.programs import in_turn
from tests.model.small import random_tokens
from tr.decode.generate import generate
from tr.decode.step import Model
from tr.decode.stream import Counts, advance, open_stream, warnings
from tr.drafts.auto import Auto
from tr.drafts.base import BROKEN, MISSING, Draft, Feed, Seen, Stateless
from tr.drafts.dflash2 import Dflash2
from tr.drafts.dflash2_step import fuse
from tr.drafts.lookup import Lookup
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling, sampling
from tr.tree import unchecked

CAPACITY, LENGTH = 64, 20
HEATS = (0.0, 0.8)
LATE = pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


def truth(heat: float) -> list[int]:
    prompt = random_tokens(LENGTH).clamp(max=IDS - 1).tolist()
    return (
        prompt + generate(model(), Raw(), prompt, sampling(heat, seed=4), 45, (), CAPACITY).tokens
    )


@dataclass(frozen=True, eq=False)
class Holes(Stateless):
    """The right tokens, but for places (positions modulo 11) that hold something else."""

    text: Tensor
    holes: dict[int, int]
    rows: int = 6
    name: str = "holes"

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        at = feed.pos + 1 + torch.arange(self.rows - 1)
        drafts = self.text.index_select(0, at.clamp(max=len(self.text) - 1))
        for place, value in self.holes.items():
            drafts = drafts.masked_fill(at % 11 == place, value)
        return drafts, None


@LATE
@pytest.mark.parametrize("heat", HEATS)
def test_a_place_without_a_draft_ends_its_block(heat, late):
    """Whatever stands behind it, and whatever token its row read instead."""
    text, holes = truth(heat), {2: MISSING, 3: BROKEN, 7: MISSING}
    strategy = Holes(torch.tensor(text), holes)
    stream = open_stream(model(), strategy, text[:LENGTH], sampling(heat, seed=4), CAPACITY)
    stream.late, counts = late, Counts()
    tokens = [t for tokens in advance(stream, counts, 40) for t in tokens]
    assert tokens == text[LENGTH + 1 :][:40]
    pos, broken = LENGTH, 0
    each = zip(counts.kept, counts.proposed, counts.accepted, counts.refused, strict=True)
    for i, (kept, proposed, accepted, refused) in enumerate(each):
        at = [p % 11 for p in range(pos + 1, pos + 1 + proposed)]
        first = next((n for n, place in enumerate(at) if place in holes), proposed)
        assert accepted == first and refused == sum(place in holes for place in at)
        assert kept == accepted + 1 or i + 1 == counts.steps
        broken += at.count(3)
        pos += kept
    assert counts.broken == broken > 0 and warnings(0) == ()
    assert warnings(broken) == (
        f"draft: {broken} drafts were refused: their logits were not finite numbers",
    )


@dataclass(eq=False)
class Turns(Stateless):
    """Three programs over one state, by what the host has read; keeps what it was shown."""

    each: list[Draft]
    rows: int = 8
    name: str = "turns"
    shown: list[tuple[Seen, ...]] = field(default_factory=list)

    def pick(self, seen):
        self.shown.append(tuple(seen))
        steps = seen[1:]
        program = self.each[sum(s.kept for s in steps) % len(self.each)]
        return program, 1 + (program.rows - 1) * (len(steps) % 3) // 2

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        raise AssertionError("only its programs run")


@LATE
@pytest.mark.parametrize("heat", HEATS)
def test_programs_and_rows_follow_what_was_read(heat, late):
    text = truth(heat)
    known = torch.tensor(text)
    programs = [Holes(known, {}, 8), Holes(known, {4: MISSING, 5: 0}, 5), Raw(), Lookup(7, 1, 2)]
    strategy = Turns(programs)
    stream = open_stream(model(), strategy, text[:LENGTH], sampling(heat, seed=4), CAPACITY)
    stream.late, counts = late, Counts()
    tokens = [t for tokens in advance(stream, counts, 40) for t in tokens]
    assert tokens == text[LENGTH + 1 :][:40]
    seen, place = [Seen(1, 1, tokens=(text[LENGTH],))], LENGTH + 1
    each = zip(counts.proposed, counts.accepted, counts.kept, counts.ran, strict=True)
    for proposed, accepted, kept, ran in each:
        added = tuple(text[place : place + kept])
        seen.append(Seen(proposed + 1, accepted + 1, ran, added))
        place += kept
    assert stream.seen == seen and len(set(counts.proposed)) > 2
    for shown in strategy.shown:
        assert list(shown) == seen[: len(shown)]
    lags = {n + 1 - len(shown) for n, shown in enumerate(strategy.shown)}
    assert late or lags == {0}


class NoHost(TorchDispatchMode):
    """Fails on an operation whose result the host must know; operators have variants of their own,
    which on a CPU may look at their arguments."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique")
    inside = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = [x for i in args if isinstance(i, (list, tuple)) for x in i]
        by_mask = name.startswith("index") and any(
            isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in masks
        )
        if not self.inside and (name in self.FORBIDDEN or by_mask):
            raise AssertionError(f"the host reads a value: {name}")
        return func(*args, **(kwargs or {}))

    def operators(self, m: Model) -> Model:
        """`m` with operators during which nothing fails."""

        def allowed(op):
            def call(*args):
                self.inside += 1
                try:
                    return op(*args)
                finally:
                    self.inside -= 1

            return call

        ops = {f.name: allowed(getattr(m.ops, f.name)) for f in dataclasses.fields(m.ops)}
        return replace(m, ops=replace(m.ops, **ops))


def copies(monkeypatch) -> None:
    """The ways to the host that no operation shows on a CPU fail as well."""

    def refuse(self, *args, **kwargs):
        raise AssertionError("the host reads a tensor")

    for name in ("tolist", "numpy", "cpu", "__array__"):
        monkeypatch.setattr(Tensor, name, refuse)


@pytest.mark.parametrize(
    "name", ["raw", "lookup", "oracle", "mtp", "dflash2", "fused", "long", "copy", "auto"]
)
@pytest.mark.parametrize("heat", HEATS)
@torch.inference_mode()
def test_a_step_reads_nothing_on_the_host(name, heat, monkeypatch):
    watch = NoHost()
    m, text = watch.operators(model()), truth(heat)
    block, reference = dflash2_draft(m), watch.operators(model("reference")).ops
    assert isinstance(block, Dflash2)
    strategy: Draft = {
        "raw": Raw,
        "lookup": lambda: Lookup(7, 1, 3),
        "oracle": lambda: Oracle(torch.tensor(text), 7, 0.8),
        "mtp": lambda: mtp_draft(m, 3),
        "dflash2": lambda: block,
        "fused": lambda: replace(block, fused=fuse(block.params, reference)),
        "long": lambda: in_turn(block),
        "copy": lambda: in_turn(block).copy,
        "auto": lambda: Auto(Raw(), in_turn(block), 1.0, lambda ids: ""),
    }[name]()
    stream = open_stream(m, strategy, text[:LENGTH], sampling(heat, seed=4), CAPACITY)
    stream.end(LENGTH, CAPACITY, (IDS + 1,))
    state, results = stream.state, []
    with monkeypatch.context() as patched, watch:
        copies(patched)
        for rows in (strategy.rows, max(1, strategy.rows - 1), strategy.rows):
            result, _, state = m.step(strategy, state, stream.sampling, rows)
            results.append(result)
    made = [t for n, *tokens in (r.tolist() for r in results) for t in tokens[:n]]
    assert made == text[LENGTH + 1 :][: len(made)] and len(made) >= 3


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x[0] > 0),
        lambda x: int(x[0]),
        lambda x: x[x > 1],
        lambda x: x.nonzero(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: torch.equal(x, x),
    ],
)
def test_the_watch_sees_a_read(read, monkeypatch):
    with monkeypatch.context() as patched, NoHost():
        copies(patched)
        with pytest.raises(AssertionError, match="the host reads"):
            read(torch.arange(4))
