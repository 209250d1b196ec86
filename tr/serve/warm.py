"""What requests will run, run once at the start: compiled, tuned and captured before they come."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from kernels.define import MAX_ROWS
from tr.decode.session import Cancelled, Sessions
from tr.decode.step import GRID
from tr.decode.stream import Counts
from tr.model.sampling import sampling
from tr.serve.job import Settings

MORE = 8  # tokens of a second turn


def warm(
    sessions: Sessions, settings: Sequence[Settings], goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Read a prompt of a whole chunk and the rest of one, answer it, read a short turn behind it,
    and run each program of the draft at its most rows: for each kind of settings. Nothing of it is
    kept. `goes_on`: asked between two of these; where it says no, the others are left out.
    """
    device = sessions.model.params.norm.device
    drawn = [sampling(**asdict(one), device=device) for one in settings]
    kinds = {(s.greedy, s.cuts, s.adjusts, len(s.bias)): s for s in drawn}
    rows = sessions.draft.rows
    answer = 4 * rows
    length = min(sessions.model.chunk + GRID + 1, sessions.capacity - 2 * answer - MORE - MAX_ROWS)
    try:
        for each in kinds.values() if length > 0 else ():
            ids = [n % sessions.model.ids for n in range(length)]
            for new in (0, MORE):
                ids += ids[:new]
                turn = sessions.open(ids, each, goes_on=lambda read: goes_on())
                counts = Counts()
                for _ in turn.answer(counts, answer, cancelled=lambda: not goes_on()):
                    pass
                ids += counts.tokens
            for program in turn.stream.draft.programs:
                if goes_on():
                    turn.stream.launch(program, turn.stream.rows(program.rows, program, len(ids)))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            sessions.forget()
    except Cancelled:
        pass
    sessions.forget()
