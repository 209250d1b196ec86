"""Head slices: rows of the matrix and their tokens; drafts inside a slice stay what they were."""

import dataclasses
import json

import pytest
import torch

from kernels.int4_matmul import layout
from tests.decode.small import DRAFT, IDS, dflash2_draft, model, mtp_draft
from tests.model.small import random_tokens
from tr.assemble import assemble
from tr.budget import budget
from tr.decode.generate import generate
from tr.decode.step import Model
from tr.decode.stream import open_stream
from tr.drafts import dflash2
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.head import listing, read_listing, sliced, whole
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.nn.formats.dense import Dense, dense
from tr.nn.formats.int4 import Int4, int4, unpack
from tr.overrides import load
from tr.quant import rtn
from tr.tree import tensors

PROMPT = random_tokens(30, seed=9).clamp(max=IDS - 1).tolist()
SETTINGS = [{}, {"temperature": 1.0, "seed": 2**33 + 5}]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("rows", [[0], [129, 5, 5, 64, 63], [*range(100, 30, -1)]], ids=len)
def test_taken_rows_are_the_matrix_s(rows):
    g = torch.Generator().manual_seed(0)
    packed, plain = int4([130], 256, g), dense([100, 30], 256, g, torch.bfloat16)
    at = torch.tensor(rows)
    some = packed.take(at)
    assert some.shape == (len(rows), 256) and some.splits == (len(rows),)
    for a, b in zip(unpack(some), unpack(packed), strict=True):
        assert torch.equal(a, b[at])
    assert torch.equal(layout.pack(*unpack(some)), some.tiles)  # zero past the last row
    assert torch.equal(plain.take(at).weight, plain.weight[at])


@pytest.mark.parametrize("n", [1, 64, 100, 128, 130])
def test_first_rows_are_a_view_where_they_fill_tiles(n):
    g = torch.Generator().manual_seed(0)
    packed, plain = int4([130], 256, g), dense([130], 256, g, torch.bfloat16)
    some = packed.first(n)
    assert torch.equal(layout.pack(*(x[:n] for x in unpack(packed))), some.tiles)
    shared = some.tiles.untyped_storage().data_ptr() == packed.tiles.untyped_storage().data_ptr()
    assert shared == (n % 64 == 0)
    assert plain.first(n).weight.data_ptr() == plain.weight.data_ptr()
    assert plain.first(n).splits == some.splits == (n,)


def test_a_slice_s_rows_and_tokens():
    matrix = dense([96], 128, torch.Generator().manual_seed(0), torch.float32)
    head = sliced(matrix, IDS, [70, 3, 3, 50])
    assert head.count == 3 and isinstance(head.matrix, Dense)
    assert torch.equal(head.matrix.weight, matrix.weight[[3, 50, 70]])
    assert head.tokens(torch.tensor([[2, 0], [1, 1]])).tolist() == [[70, 3], [50, 50]]
    assert int(head.tokens(torch.tensor(1))) == 50
    leading = sliced(matrix, IDS, range(40))
    assert leading.ids is None and leading.count == 40
    assert isinstance(leading.matrix, Dense) and leading.matrix.weight.shape == (40, 128)
    rows = torch.arange(4)
    assert leading.tokens(rows) is rows and whole(matrix, IDS).tokens(rows) is rows


@pytest.mark.parametrize("ids, said", [([], "got none"), ([IDS], "0 .. 89"), ([-1, 4], "ids -1")])
def test_only_real_tokens_are_drafted(ids, said):
    with pytest.raises(ValueError, match=f"draft.head: .*{said}|{said}"):
        sliced(dense([96], 128, torch.Generator(), torch.float32), IDS, ids)


def packed(m: Model) -> Model:
    """With an output matrix in int4."""
    assert isinstance(m.params.lm_head, Dense)
    head, _ = rtn.quantise(m.params.lm_head)
    assert isinstance(head, Int4)
    return dataclasses.replace(m, params=dataclasses.replace(m.params, lm_head=head))


def proposed(m: Model, draft: Draft, settings: dict) -> list[int]:
    """The first drafts after PROMPT."""
    s = sampling(**settings)
    state = open_stream(m, draft, PROMPT, s, 64).state
    return draft.propose(state.draft, state.feed, s)[0].tolist()


@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("quant", ["dense", "int4"])
def test_drafts_inside_a_slice_are_the_whole_head_s(quant, settings, monkeypatch):
    """In float32, so that roundings decide nothing; every other token may be missing."""
    m = model(dtype=torch.float32)
    m = packed(m) if quant == "int4" else m
    candidates = []
    walk = dflash2.walk

    def spy(params, hidden, anchor, pos, best, *rest):
        candidates.append(best)
        return walk(params, hidden, anchor, pos, best, *rest)

    monkeypatch.setattr(dflash2, "walk", spy)
    for draft in (mtp_draft(m), dflash2_draft(m)):
        want = proposed(m, draft, settings)
        needed = {*want, *(candidates[-1].flatten().tolist() if candidates else ())}
        assert 3 <= len(needed) < IDS - 10, len(needed)
        assert isinstance(draft, Mtp | Dflash2)
        for extra in ((), range(1, IDS, 7)):
            few = dataclasses.replace(draft, head=sliced(m.params.head, IDS, {*needed, *extra}))
            assert few.head.count < IDS and proposed(m, few, settings) == want


@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "sampled"])
def test_a_tiny_slice_changes_no_text(settings):
    m, s = model(), sampling(**settings)
    raw = generate(m, Raw(), PROMPT, s, 24, (), 64).tokens
    ids = [*range(2, IDS, 9)]
    assert len(ids) == 10 and not set(raw) <= set(ids)
    head = sliced(m.params.head, IDS, ids)
    for draft in (mtp_draft(m), dflash2_draft(m)):
        assert isinstance(draft, Mtp | Dflash2)
        few = dataclasses.replace(draft, head=head)
        assert set(proposed(m, few, settings)) <= set(ids)
        assert generate(m, few, PROMPT, s, 24, (), 64).tokens == raw


def test_a_selector_s_slice_holds_its_candidates():
    m = model(dtype=torch.float32)
    draft = dflash2_draft(m)
    assert isinstance(draft, Dflash2)
    head = sliced(m.params.head, IDS, range(DRAFT.selector_top - 1))
    with pytest.raises(ValueError, match="best 6 tokens, the slice has 5"):
        dataclasses.replace(draft, head=head)


@pytest.mark.parametrize("strategy", ["mtp", "dflash2"])
def test_configs_make_slices_that_keep_control_tokens(strategy, tmp_path):
    base = ("run=x", "device=cpu", f"draft={strategy}")
    made = assemble(load([*base]))
    control, count = set(made.tokenizer.control.values()), made.model.ids
    assert len(control) > 20 and max(control) == count - 1

    def head(*args: str):
        draft = made.draft(load([*base, *args]))
        assert isinstance(draft, Mtp | Dflash2)
        return draft.head

    assert head().ids is None and head().count == count
    every = head("draft.head.kind=first")  # more than there are
    assert every.ids is None and every.count == count
    few = head("draft.head.kind=first", "draft.head.ids=64")
    assert few.ids is not None and set(few.ids.tolist()) == {*range(64), *control}
    weight = made.model.params.embed
    assert torch.equal(tensors(few.matrix)["weight"], weight[few.ids])
    path = tmp_path / "list.json"
    path.write_text(listing([300, 7, 200, 9], count))
    some = head("draft.head.kind=counted", f"draft.head.path={path}", "draft.head.ids=3")
    assert some.ids is not None and set(some.ids.tolist()) == {300, 7, 200, *control}


def test_a_slice_s_bytes_are_planned():
    args = ["run=x", "device=cpu", "draft=mtp"]
    shape = load(args).model.spec()

    def held(*more: str) -> float:
        items = budget(load([*args, *more]), shape, 512, None, 4.0).items
        return next(item.held for item in items if item.name == "draft head")

    assert held() == 0
    assert held("draft.head.kind=first", "draft.head.ids=64") == 64 * 384 * 2
    assert held("draft.head.kind=first") == 640 * 384 * 2  # no more than there are
    untied = load([*args, "model.tie_embeddings=false", "draft.head.kind=first"])
    items = {i.name: i.held for i in budget(untied, untied.model.spec(), 512, None, 4.0).items}
    assert items["draft head"] == 640 * 384 * 4  # as the head itself is held


@pytest.mark.parametrize(
    "args, said",
    [
        (["draft.head.kind=frist"], "'frist'; did you mean 'first'"),
        (["draft.head.ids=0"], "draft.head.ids must be positive"),
        (["draft.head.kind=counted"], "kind=counted takes draft.head.path=FILE"),
        (["draft.head.path=x"], "kind=full takes no draft.head.path"),
    ],
)
def test_settings_that_are_refused(args, said):
    with pytest.raises(ValueError) as caught:
        load(["run=x", "draft=mtp", *args])
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"ids": [1]}', '{"tokens": 5, "ids": ["x"]}'])
def test_files_that_are_no_lists(text, tmp_path):
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a list of tokens"):
        read_listing(path, 5)


def test_a_list_belongs_to_its_tokenizer(tmp_path):
    path = tmp_path / "list.json"
    path.write_text(listing([4, 2], 5))
    assert read_listing(path, 5) == [4, 2] and json.loads(path.read_text())["tokens"] == 5
    with pytest.raises(ValueError, match="of 5 tokens, this one has 6"):
        read_listing(path, 6)
    with pytest.raises(FileNotFoundError):
        read_listing(tmp_path / "none.json", 5)
