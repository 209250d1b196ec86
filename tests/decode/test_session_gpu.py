"""On a card: conversations swapped in and out under captured steps, which are captured once."""

import pytest
import torch

from tests.decode.test_session import Plain, assert_same_state, say, tokens
from tests.test_jit_gpu import CAPACITY, NAMES, SETTINGS, draft, model, settings
from tr.decode.session import Sessions
from tr.graph import Graphs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", ["eager", "cuda_graph"])
@pytest.mark.parametrize("values", SETTINGS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_turn_equals_one_that_never_paused(name, values, backend, monkeypatch):
    m, d, s = model(backend), draft(name), settings(**values)
    captures, capture = [], Graphs._capture
    monkeypatch.setattr(
        Graphs, "_capture", lambda self, *args: (captures.append(args), capture(self, *args))[1]
    )
    held = Sessions(m, d, CAPACITY, 1 << 28)
    plain = Plain(model("eager"), d, s, capacity=CAPACITY)
    ids: list[int] = []
    turns = []  # a caller may hold them
    for n in range(4):
        side = held.open(tokens(5 + 90 * n, 50 + n), s)
        say(side, 3)
        seen = len(captures)
        new = tokens(60 + n, n)
        turn = held.open(ids + new, s)
        turns += [side, turn]
        assert turn.reused == max(0, len(ids) - 1)
        plain.hear(ids[-1:] + new)
        assert_same_state(turn.stream.state, plain.state)
        answer = say(turn, 12)
        assert answer == plain.say(12)
        assert n < 2 or len(captures) == seen, "the same storage is captured once"
        ids += new + answer[0]
    assert torch.equal(turn.stream.state.feed.history[: len(ids)].cpu(), torch.tensor(ids))


def test_a_snapshot_leaves_the_device_while_steps_run():
    """What is on the host is what stood on the device when it was taken, not later."""
    s, m, d = settings(), model("cuda_graph"), draft("mtp")
    held = Sessions(m, d, CAPACITY, 1 << 28)
    prompt = tokens(200, 1)
    answer = say(held.open(prompt, s), 40)
    (text,) = held.held.all
    carried = [x for t in text.snapshots.values() for x in t.carried().values()]
    assert len(text.snapshots) == 2 and all(x.is_pinned() for x in carried)
    say(held.open(tokens(300, 2), s), 5)
    assert say(held.open(prompt, s), 40) == answer
