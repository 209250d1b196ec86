"""What is held, what goes when room is short, and files of it."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.decode.test_session import (
    CAPACITY,
    GREEDY,
    HEAT,
    Plain,
    draft,
    say,
    sessions,
    target,
    tokens,
)
from tr.decode.held import Conversation, Held
from tr.decode.session import Sessions
from tr.decode.snapshot import Rows, Snapshot
from tr.drafts.raw import Raw
from tr.tree import unchecked


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


def snapshot(pos: int, size: int = 100) -> Snapshot:
    return Snapshot(pos, pos, 0, 1, 0, size, dict)


def text(*places: int, rows: int = 0) -> Conversation:
    """One with a snapshot of 100 bytes at each place, and rows of as many bytes as asked for."""
    ids = torch.arange(max(places, default=0))
    made = Conversation(ids, Raw(), ids, {at: snapshot(at) for at in places})
    if rows:
        piece = Rows(0, rows, ((torch.zeros(rows, dtype=torch.uint8),),))
        made.rows = [(piece, rows)]
    return made


def held(budget: int, *texts: Conversation) -> Held:
    made = Held(budget)
    for one in texts:
        made.use(one)
    return made


def test_snapshots_are_thinned_the_more_the_further_from_the_end():
    one = text(*range(100, 1700, 100), 1610, 1620)
    store = held(700, one)
    store.shrink([one])
    assert store.nbytes == 700
    left = sorted(one.snapshots)
    gaps = [b - a for a, b in zip([0, *left], left, strict=False)]
    assert left[-3:] == [1600, 1610, 1620] and gaps == sorted(gaps, reverse=True), left
    store.budget = 50
    store.shrink([one])
    assert sorted(one.snapshots) == [1620]  # the last one stays, and the loop ends


def test_the_conversation_that_nobody_came_back_to_goes_first():
    main, old, new, now = text(50, rows=300), text(40), text(30), text(20)
    store = held(700, main, main, old, new, now)
    store.shrink([now])
    assert store.all == [main, old, new, now]
    store.budget = 699
    store.shrink([now])
    assert store.all == [main, new, now]
    store.budget = 401
    store.shrink([now], room=1)
    assert store.all == [now]


def test_a_branch_is_a_return():
    """A conversation whose every turn parts from the last one's end stays before side requests."""
    main = text(50)
    store = held(200, main)
    for n in range(4):
        side = text(5 + n)
        store.use(side)
        store.shrink([side])
        assert main in store.all
        main = main.until(50)
        store.use(main)
        store.shrink([main])


def test_a_long_text_s_snapshots_go_before_another_text():
    long, short = text(*range(10, 100, 10)), text(5)
    store = held(900, short, long)
    store.shrink([long])
    assert store.all == [short, long] and len(long.snapshots) == 8
    assert max(long.snapshots) == 90


def test_what_is_lost_is_whole_tiles():
    one = text(10)
    one.lose(130, 200)
    assert one.lost == (128, 256)
    one.lose(500, 520)
    assert one.lost == (128, 640)


def test_what_texts_share_counts_once():
    one = text(10, 40, 90, rows=90)
    branch = one.until(40)
    assert sorted(branch.snapshots) == [10, 40] and branch.saved == 40
    store = held(1000, one, branch)
    assert store.nbytes == 300 + 90
    store.all.remove(one)
    assert store.nbytes == 200 + 90


@pytest.mark.parametrize(
    "ids, place",
    [
        (range(5), 0),
        (range(10), 10),
        (range(39), 10),
        (range(40), 40),
        ([*range(60), 0, 0], 40),
        (range(90), 40),
        (range(91), 90),
        (range(200), 90),
        ([7], 0),
    ],
)
def test_the_longest_beginning_is_found(ids, place):
    """A place behind written tokens, the one at 90, needs a token to follow."""
    one = text(10, 40, 90)
    one.ids = torch.arange(92)
    one.snapshots[90] = dataclasses.replace(snapshot(90), prompt=80)
    store = held(1000, text(3), one)
    expected = (one, place) if place else (None, 0)
    if list(ids)[:3] == [0, 1, 2] and place == 0:
        expected = (store.all[0], 3)
    assert store.longest(torch.tensor(list(ids))) == expected


def test_a_budget_without_room_for_a_snapshot_is_refused():
    with pytest.raises(ValueError, match=r"a snapshot takes up to \d{6} bytes, 1000 are given"):
        sessions(budget=1000)
    with pytest.raises(ValueError, match="sessions.every: expected at least 1 token, got 0"):
        sessions(every=0)


@pytest.mark.parametrize("share", [1.1, 2.5, 5])
def test_a_small_budget_costs_reuse_alone(share):
    """Never more than the budget is held, and every answer is that of a roomy one."""
    one = sessions("mtp", strict=True, chunk=64)
    answer = say(one.open(tokens(200, 1), HEAT), 5)
    size = max(s.nbytes for c in one.held.all for s in c.snapshots.values())
    small = sessions("mtp", strict=True, chunk=64, budget=int(share * max(size, 150_000)))
    for n in (1, 2, 3, 1, 2, 1, 1):
        ids = tokens(200, n)
        got = say(small.open(ids, HEAT, marks=(70, 140)), 5)
        assert small.held.nbytes <= small.held.budget
        if n == 1:
            assert got == answer


def test_a_text_that_does_not_fit_is_let_go_of_alone():
    held = sessions("raw", budget=1 << 18)
    prompt = tokens(400, 1)
    say(held.open(prompt, GREEDY), 2)
    held.held.budget = 150_000  # its rows alone are more
    assert held.open(tokens(9, 2), GREEDY).reused == 0
    assert held.open(prompt, GREEDY).reused == 0
    held.held.budget = 1 << 20
    assert held.open(tokens(9, 3), GREEDY).reused == 0
    assert held.open(prompt, GREEDY).reused == 400


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, list[int], list[int]]:
    """A file of three texts, two of which share a beginning; the first one, and its answer."""
    with unchecked():
        one, prompt = sessions("mtp"), tokens(150, 1)
        answer, _ = say(one.open(prompt, HEAT, marks=(60,)), 6)
        say(one.open(prompt[:80] + tokens(9, 2), HEAT), 3)
        say(one.open(tokens(20, 3), HEAT), 3)
        path = tmp_path_factory.mktemp("saved") / "held.safetensors"
        one.save(path)
        assert [p.name for p in path.parent.iterdir()] == [path.name]
        return path, prompt, answer


def test_a_file_brings_everything_back(saved):
    path, prompt, answer = saved
    new = sessions("mtp")
    new.load(path)
    for ids, reused in (
        (tokens(20, 3) + [1], 20),
        (prompt + answer + [5], 155),
        (prompt[:60], 60),
        (prompt[:80] + tokens(9, 2) + [4], 89),
    ):
        turn = new.open(ids, HEAT)
        assert turn.reused == reused
        if reused == 155:
            want = Plain(target(), draft("mtp"), HEAT).hear(prompt[:60]).hear(prompt[60:])
            assert want.say(6)[0] == answer
            assert say(turn, 6) == want.hear([answer[-1], 5]).say(6)


def test_a_file_joins_what_is_held(saved):
    path, prompt, answer = saved
    new = sessions("mtp")
    say(new.open(tokens(30, 9), HEAT), 4)
    new.load(path)
    assert new.open(tokens(30, 9) + [2], HEAT).reused == 30
    assert new.open(prompt + answer + [2], HEAT).reused == 155


@pytest.mark.parametrize(
    "name, made",
    [
        ("draft", lambda: sessions("dflash2")),
        ("kv", lambda: sessions("mtp", "fp8")),
        ("prefill", lambda: sessions("mtp", strict=True)),
        ("prefill", lambda: sessions("mtp", chunk=64)),
        ("capacity", lambda: Sessions(target(), draft("mtp"), CAPACITY - 1, 1 << 28)),
        ("model", lambda: sessions_of_other_weights()),
        ("kernel.sample", lambda: sessions_of_other_kernel()),
    ],
)
def test_a_file_of_another_config_is_refused_by_name(saved, name, made):
    new = made()
    with pytest.raises(ValueError, match=rf"is for {name} '.*', this run's is '"):
        new.load(saved[0])
    assert not new.held.all


def sessions_of_other_weights() -> Sessions:
    m = target()
    other = dataclasses.replace(m, params=dataclasses.replace(m.params, norm=m.params.norm + 1))
    return Sessions(other, draft("mtp"), CAPACITY, 1 << 28)


def sessions_of_other_kernel() -> Sessions:
    m = target()
    from kernels.define import VARIANTS

    table = VARIANTS["sample"]
    other = next(v for v in table.values() if v is not m.ops.sample)
    ops = dataclasses.replace(m.ops, sample=other)
    return Sessions(dataclasses.replace(m, ops=ops), draft("mtp"), CAPACITY, 1 << 28)


def test_damaged_files_are_named(saved, tmp_path):
    path, new = tmp_path / "x", sessions("mtp")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        new.load(path)
    whole = saved[0].read_bytes()
    for size in (0, 5, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="x is truncated or damaged"):
            new.load(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="x holds no conversations"):
        new.load(path)
    with safe_open(saved[0], "pt") as file:
        header = file.metadata()
        some = {name: file.get_tensor(name) for name in sorted(file.keys())[1:]}
    save_file(some, path, metadata=header)
    with pytest.raises(ValueError, match="x lacks rows.0.0.0"):
        new.load(path)
    assert not new.held.all
    assert set(json.loads(header["tr.sessions"])) >= {"made_by", "texts", "rows", "snapshots"}
