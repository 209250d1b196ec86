"""Head slices: the rows of the target's output matrix that a draft chooses among.

A draft cannot change the text, so it may leave out tokens that are rarely written, and reads fewer
bytes for it. Rows stand in the order of their token ids: where two logits tie, the lower id wins,
as over the whole matrix.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from tr.nn.formats.matrix import Matrix
from tr.tree import static, tree


@tree
class Head:
    """`matrix` gives logits, of which the first `count` are tokens and the others padding."""

    matrix: Matrix
    ids: Int64[Tensor, " tokens"] | None  # each row's token; None: row and token are one number
    count: int = static()

    def tokens(self, rows: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """The tokens that rows of the matrix stand for."""
        if self.ids is None:
            return rows
        return self.ids.index_select(0, rows.reshape(-1)).view(rows.shape)


def whole(matrix: Matrix, count: int) -> Head:
    """All of the target's `count` real tokens."""
    return Head(matrix=matrix, ids=None, count=count)


def sliced(matrix: Matrix, count: int, ids: Iterable[int]) -> Head:
    """The tokens `ids` alone, of `count` real ones; raises ValueError where one is not real.

    Leading rows are a view where the format allows it, others are gathered once, here.
    """
    chosen = sorted(set(ids))
    if not chosen or chosen[0] < 0 or chosen[-1] >= count:
        given = f"ids {chosen[0]} .. {chosen[-1]}" if chosen else "none"
        raise ValueError(
            f"draft.head: expected token ids of 0 .. {count - 1}, got {given}; make the list with"
            " +exp=draft_vocab for this tokenizer"
        )
    n = len(chosen)
    if chosen[-1] == n - 1:
        return Head(matrix=matrix.first(n), ids=None, count=n)
    rows = torch.tensor(chosen, device=matrix.device)
    return Head(matrix=matrix.take(rows), ids=rows, count=n)


def listing(ids: Iterable[int], count: int) -> str:
    """The file of a counted list: ids by falling count, of a tokenizer with `count` tokens."""
    return json.dumps({"tokens": count, "ids": list(ids)}) + "\n"


def read_listing(path: Path, count: int) -> list[int]:
    """The ids of such a file, the most frequent first; raises ValueError, FileNotFoundError."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        ids, tokens = [int(i) for i in made["ids"]], made["tokens"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"draft.head.path: {path} is not a list of tokens; make one with +exp=draft_vocab"
        ) from error
    if tokens != count:
        raise ValueError(
            f"draft.head.path: {path} was counted for a tokenizer of {tokens} tokens, this one has"
            f" {count}; count again with +exp=draft_vocab"
        )
    return ids
