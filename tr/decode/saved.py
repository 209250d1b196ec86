"""Held conversations in one file of safetensors, with what they depend on in its header."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kernels.define import VARIANTS
from kernels.registry import Ops
from tr.decode.held import Conversation
from tr.decode.snapshot import Rows, Snapshot
from tr.decode.step import Model
from tr.drafts.base import Draft
from tr.nn import attention
from tr.tree import tensors

HEADER = "tr.sessions"
SAMPLE = 16  # numbers of each tensor that tell models of one shape apart
PLACE = ("pos", "prompt", "pending", "count", "anchor")


def fingerprint(model: Model, draft: Draft, capacity: int, strict: bool) -> dict[str, str]:
    """What rows and snapshots depend on, by name."""
    mixers = [layer.mixer for layer in model.params.layers]
    formats = {m.spec.cache for m in mixers if isinstance(m, attention.Params)}
    return {
        "model": _digest(_of_tensors(model.params)),
        "kv": ", ".join(sorted(formats)),
        **{f"kernel.{name}": used for name, used in _variants(model.ops)},
        "draft": f"{draft.name} {_digest(_of(draft, model))}",
        "capacity": str(capacity),
        "prefill": f"chunks of {model.chunk}{', strict' if strict else ''}",
    }


def write(path: Path, made_by: dict[str, str], conversations: Sequence[Conversation]) -> None:
    """The file appears whole or not at all. A part that several texts share is written once."""
    rows = {id(r): r for c in conversations for r, _ in c.rows}
    snapshots = {id(s): s for c in conversations for s in c.snapshots.values()}
    places = {key: i for part in (rows, snapshots) for i, key in enumerate(part)}
    found: dict[str, Tensor] = {}
    for i, part in enumerate(rows.values()):
        for n, of_one in enumerate(part.tensors):
            found |= {f"rows.{i}.{n}.{k}": x for k, x in enumerate(of_one)}
    for i, part in enumerate(snapshots.values()):
        found |= {f"snapshot.{i}.{name}": x for name, x in part.carried().items()}
    listed = []
    for i, c in enumerate(conversations):
        found |= {f"text.{i}.ids": c.ids, f"text.{i}.opening": c.opening}
        own = {
            "snapshots": [places[id(s)] for s in c.snapshots.values()],
            "rows": [[places[id(r)], bound] for r, bound in c.rows],
            "turns": c.turns,
        }
        listed.append(own)
    header = {
        "made_by": made_by,
        "rows": [[r.start, r.stop] for r in rows.values()],
        "snapshots": [{k: getattr(s, k) for k in PLACE} for s in snapshots.values()],
        "texts": listed,
        "tensors": sorted(found),
    }
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # copies that are on their way
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        plain = {name: x.contiguous().clone() for name, x in found.items()}
        save_file(plain, unfinished, metadata={HEADER: json.dumps(header)})
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def read(path: Path, expected: dict[str, str], like: Draft) -> list[Conversation]:
    """What `write` wrote; `like` is the strategy that opens each text.

    Raises ValueError for a damaged file, and names what it depends on that is not as `expected`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"sessions: there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = _header(path, file.metadata())
            _compare(path, header["made_by"], expected)
            if missing := sorted(set(header["tensors"]) - set(file.keys())):
                raise ValueError(f"sessions: {path} lacks {missing[0]}; save it again")
            found = {name: file.get_tensor(name) for name in header["tensors"]}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"sessions: {path} is truncated or damaged ({error}); save it again"
        ) from error
    spans = header["rows"]
    rows = [Rows(start, stop, _rows(found, i)) for i, (start, stop) in enumerate(spans)]
    snapshots = []
    for i, place in enumerate(header["snapshots"]):
        start = f"snapshot.{i}."
        parts = {n.removeprefix(start): x for n, x in found.items() if n.startswith(start)}
        size = sum(x.nbytes for x in parts.values())
        snapshots.append(Snapshot(**place, nbytes=size, carried=partial(dict, parts)))
    texts = []
    for i, one in enumerate(header["texts"]):
        opening = found[f"text.{i}.opening"]
        text = Conversation(found[f"text.{i}.ids"], like.open(opening.tolist()), opening)
        text.snapshots = {snapshots[n].pos: snapshots[n] for n in one["snapshots"]}
        text.rows = [(rows[n], bound) for n, bound in one["rows"]]
        text.turns = one["turns"]
        texts.append(text)
    return texts


def _header(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    if not metadata or HEADER not in metadata:
        raise ValueError(f"sessions: {path} holds no conversations; give a file that `save` wrote")
    return json.loads(metadata[HEADER])


def _compare(path: Path, got: dict[str, str], expected: dict[str, str]) -> None:
    for name, value in expected.items():
        if got.get(name) != value:
            raise ValueError(
                f"sessions: {path} is for {name} {got.get(name)!r}, this run's is {value!r}; load"
                " it with the config that saved it"
            )


def _rows(found: dict[str, Tensor], i: int) -> tuple[tuple[Tensor, ...], ...]:
    """Tensors of rows `i`, by cache and place."""
    by_cache: list[list[Tensor]] = []
    while (name := f"rows.{i}.{len(by_cache)}.0") in found:
        stem = name[:-1]
        count = sum(key.startswith(stem) for key in found)
        by_cache.append([found[f"{stem}{k}"] for k in range(count)])
    return tuple(map(tuple, by_cache))


def _variants(ops: Ops) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(ops):
        call = getattr(ops, field.name)
        yield field.name, next(n for n, v in VARIANTS[field.name].items() if v is call)


def _of(x: Any, model: Model) -> Iterator[str]:
    """A strategy's own values, without the target that it reads."""
    if x is model.params or isinstance(x, Ops) or callable(x):
        return
    if isinstance(x, Tensor):
        yield from _of_tensors((x,))
    elif isinstance(x, tuple | list):
        for one in x:
            yield from _of(one, model)
    elif dataclasses.is_dataclass(x):
        for field in dataclasses.fields(x):
            yield field.name
            yield from _of(getattr(x, field.name), model)
    else:
        yield repr(x)


def _of_tensors(x: Any) -> Iterator[str]:
    """Names, shapes and a few numbers of the tensors of a pytree."""
    for name, t in tensors(x).items():
        few = t.detach()[(0,) * (t.ndim - 1)][:SAMPLE] if t.ndim else t.detach().reshape(1)
        data = few.contiguous().view(torch.uint8).cpu().numpy().tobytes().hex()
        yield f"{name} {tuple(t.shape)} {t.dtype} {data}"


def _digest(lines: Iterator[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()[:12]
