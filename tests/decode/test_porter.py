"""What leaves a device: through slabs that are used again, while the state goes on."""

import gc
from collections.abc import Callable

import pytest
import torch

from tests.decode.test_session import (
    GREEDY,
    HEAT,
    Plain,
    assert_same_state,
    draft,
    say,
    sessions,
    target,
    tokens,
)
from tr.decode import session
from tr.decode.porter import AHEAD, Porter
from tr.decode.snapshot import restore, take
from tr.decode.stream import Counts
from tr.tree import unchecked

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


class Slow(Porter):
    """One whose jobs wait until somebody waits for them, in their order, as a thread may."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.jobs: list[Callable[[], None]] = []
        self.started = 0

    def _start(self, job):
        self.jobs.append(job)
        mine = len(self.jobs)

        def wait() -> None:
            while self.started < mine:
                self.started += 1
                self.jobs[self.started - 1]()

        return wait


def views(n: int) -> dict[str, torch.Tensor]:
    """Of odd sizes, shapes and strides, filled with n."""
    wide = torch.full((3, 5, 7), float(n), dtype=torch.bfloat16)
    return {
        "cut": wide[:, :4],
        "one": torch.tensor(n),
        "bytes": torch.full((5,), n, dtype=torch.uint8),
        "wide": torch.full((2, 3), float(n)),
        "last": wide[0, 0, :1],
    }


def place(there: Callable) -> int:
    return there()["cut"].untyped_storage().data_ptr()


def assert_holds(there: Callable, n: int) -> None:
    got, want = there(), views(n)
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert got[name].dtype == x.dtype and torch.equal(got[name], x), name


def test_slabs_hold_the_newest_and_older_ones_move_out():
    porter = Porter(CPU, 1024, 2)
    slabs = {slab.memory.data_ptr() for slab in porter._slabs}
    assert porter.nbytes == 2048
    made = [porter.small(views(n)) for n in range(5)]
    places = [place(there) for there in made]
    assert set(places[3:]) == slabs and len(set(places)) == 5
    for n, there in enumerate(made):
        assert_holds(there, n)


def test_a_slab_is_used_again_when_its_parcel_went():
    porter = Porter(CPU, 1024, 2)
    kept, gone = porter.small(views(1)), porter.small(views(2))
    slab, before = place(gone), place(kept)
    del gone
    gc.collect()
    again = porter.small(views(3))
    assert place(again) == slab and place(kept) == before  # which was lent longer
    assert_holds(kept, 1)
    assert_holds(again, 3)


def test_what_is_larger_than_a_slab_has_memory_of_its_own():
    porter = Porter(CPU, 64, 1)
    made = porter.small(views(1))
    assert place(made) != porter._slabs[0].memory.data_ptr()
    assert_holds(made, 1)


def test_copies_are_those_of_the_moment_and_no_more_than_a_few_wait():
    porter, x = Slow(CPU, 1024, 1), torch.zeros(3)
    made = []
    for n in range(4):
        x.fill_(n)
        made.append(porter.small({"x": x}))
        assert len(porter.jobs) - porter.started <= AHEAD
    x.fill_(9)
    assert porter.started == 2
    assert made[0]()["x"].tolist() == [0, 0, 0]
    assert porter.started == 4  # the later ones take its slab: nothing may move under a reader
    assert [there()["x"][0].item() for there in made] == [0, 1, 2, 3]


def test_a_job_that_failed_is_its_own_parcel_s(monkeypatch):
    porter = Slow(CPU, 1024, 1)
    good = porter.small(views(1))
    assert_holds(good, 1)
    monkeypatch.setattr(porter, "_memory", lambda parcel: 1 / 0)
    bad = porter.small(views(2))
    assert_holds(good, 1)  # which waits for the other one
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            bad()
    monkeypatch.undo()
    assert_holds(porter.small(views(3)), 3)


def test_a_state_comes_back_that_went_on_before_its_copy_left():
    plain, porter = Plain(target(), draft("dflash2"), HEAT).hear(tokens(40, 1)), Slow(CPU)
    plain.say(5)
    before = plain.copy()
    with torch.inference_mode():
        held = take(porter, plain.state)
        plain.hear(tokens(90, 2)).say(3)
        assert not porter.started
        restore(plain.state, held, before.state.feed.history[: held.pos].clone())
    assert_same_state(plain.state, before.state)
    assert plain.say(9) == before.say(9)


def test_turns_and_branches_over_a_slow_way_out(monkeypatch):
    """Every snapshot is late, slabs are few, and texts are those that never paused."""
    monkeypatch.setattr(session, "Porter", Slow)
    monkeypatch.setattr(session, "SLABS", 1)
    held, d, made = sessions("mtp"), draft("mtp"), []
    for n in range(8):
        plain = Plain(target(), d, HEAT)
        ids = []
        if n > 2:
            ids, plain = made[(n * 5) % len(made)]
            plain = plain.copy()
        new = tokens(10 + n, n)
        turn = held.open(ids + new, HEAT)
        assert turn.reused == max(0, len(ids) - 1)
        plain.hear(ids[-1:] + new)
        answer = say(turn, 4)
        assert answer == plain.say(4)
        assert_same_state(turn.stream.state, plain.state)
        made.append((ids + new + answer[0], plain))


def test_slabs_count_against_the_budget():
    size = 1 << 19
    for budget, slabs in ((size, 0), (4 * size, 2), (64 * size, 4)):
        held = sessions(budget=budget)
        porter = held._porter
        assert porter.nbytes <= budget // 4 and held.held.budget + porter.nbytes == budget
        assert len(porter._slabs) == slabs or budget == size
        one = len(porter._slabs[0].memory) if porter._slabs else 0
        say(held.open(tokens(300, 1), GREEDY), 9)
        (text,) = held.held.all
        largest = max(s.nbytes for s in text.snapshots.values())
        assert not one or largest <= one


def test_no_first_token_waits_for_a_snapshot(monkeypatch):
    held, kept = sessions("mtp"), []
    plain = session.take
    monkeypatch.setattr(
        session,
        "take",
        lambda porter, state: (kept.append(int(state.feed.pos)), plain(porter, state))[1],
    )
    prompt = tokens(30, 1)
    turn = held.open(prompt, GREEDY, marks=(20,))
    assert kept == [20]
    steps = turn.answer(Counts(), 5)
    first = next(steps)
    assert kept == [20]
    next(steps)
    assert kept == [20, 30]
    list(steps)
    assert kept == [20, 30, 34]
    turn = held.open([*prompt, *first, *tokens(4, 2)], GREEDY)
    list(turn.more(Counts(), 3))
    assert kept[3:] == [35, 38]
    held.open([*prompt, *tokens(3, 4)], GREEDY)
    held.open(tokens(9, 3), GREEDY)
    assert kept[5:] == [33]  # nobody asked for its answer


def test_a_prompt_whose_first_token_met_an_error_is_kept():
    held, prompt = sessions("mtp"), tokens(30, 1)
    steps = held.open(prompt, GREEDY).answer(Counts(), 5)
    next(steps)
    with pytest.raises(RuntimeError, match="broken"):
        steps.throw(RuntimeError("broken"))
    assert held.open(prompt, GREEDY).reused == 30
