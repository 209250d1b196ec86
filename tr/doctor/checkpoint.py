"""What is in a checkpoint's files, by its headers: formats, what is missing, drafts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from tr.assemble import open_dflash2, read_dflash2, read_found
from tr.checkpoint.load import Found
from tr.checkpoint.tokenizer import load_tokenizer
from tr.config import Dflash2Draft, Model, MtpDraft, RandomWeights
from tr.doctor.finding import FAIL, OK, WARN, Finding, guarded, refused
from tr.doctor.machine import Machine, choice
from tr.model.config import ModelConfig
from tr.overrides import choices
from tr.roofline import size


def check(machine: Machine) -> Iterator[Finding]:
    config = machine.config
    if isinstance(config.weights, RandomWeights):
        yield Finding("files", OK, "weights=random reads none", "no tokenizer: no text, no server")
        return
    folder, found = read_found(config)
    yield from files(folder, found)
    yield from named(machine, found.config)
    yield from guarded("tokenizer", lambda: tokens(folder, found.config))
    yield from guarded("drafts", lambda: drafts(machine, folder, found))


def files(folder: Path, found: Found) -> Iterator[Finding]:
    """`match` has compared every name and shape with the model's: none is missing or unknown."""
    count, nbytes = Counter(), Counter()
    for stored in found.plan.reads.values():
        for one in stored:
            count[one.format.name] += 1
            nbytes[one.format.name] += one.nbytes
    kinds = ", ".join(f"{count[k]} {k} ({size(nbytes[k])})" for k in sorted(count))
    left = f"; {len(found.plan.skipped)} left unread" if found.plan.skipped else ""
    yield Finding(
        "tensors",
        OK,
        f"{len(found.files.entries)} in {folder}: {kinds}; none missing, none unknown{left}",
        figures={"tensors": dict(count), "bytes": dict(nbytes)},
    )
    for warning in found.warnings:
        yield replace(refused("files", ValueError(warning)), state=WARN)


def named(machine: Machine, shape: ModelConfig) -> Iterator[Finding]:
    """Which of configs/model it is; a checkpoint's own config.json decides."""
    same = [name for name in choices("model") if spec(name) == shape]
    chosen = machine.config.model.name
    own = f"{shape.layers} layers of width {shape.d_model}, {shape.vocab:,} tokens"
    told, state = "", OK
    if chosen not in (*same, "tiny"):
        state = WARN
        told = f"model={chosen} has another shape and counts for weights=random alone"
    yield Finding("shape", state, f"{own}: model={' or '.join(same) or 'none of configs/'}", told)


def spec(name: str) -> ModelConfig:
    return choice("model", name, Model).spec()


def tokens(folder: Path, shape: ModelConfig) -> Iterator[Finding]:
    own = load_tokenizer(folder)
    if own.count > shape.vocab:
        yield Finding(
            "tokenizer",
            FAIL,
            f"{own.count} ids, the model has {shape.vocab} rows",
            "take both from one checkpoint",
        )
        return
    yield Finding("tokenizer", OK, f"{own.count:,} ids of {shape.vocab:,} rows")
    try:
        own.chat([{"role": "user", "content": "a"}])
    except ValueError as error:
        yield replace(refused("chat template", error), state=WARN)


def drafts(machine: Machine, folder: Path, found: Found) -> Iterator[Finding]:
    """What the files give drafts; missing what the chosen one needs is a failure."""
    chosen = machine.config.draft.parts()
    wanted = any(isinstance(part, MtpDraft) for part in chosen)
    if found.shapes.mtp is not None:
        yield Finding("MTP head", OK, "there: draft=mtp can run")
    else:
        state = FAIL if wanted else WARN
        yield Finding("MTP head", state, "no mtp.* tensors", "draft=mtp is unavailable")
    blocks = [part for part in chosen if isinstance(part, Dflash2Draft)]
    own = next((part for part in blocks if part.path or part.repo), None)
    place = Path(own.path).expanduser() if own and own.path else folder / "draft"
    if own and own.repo:
        from tr.checkpoint.hub import resolve

        place = resolve(None, own.repo, own.revision)
    if not place.is_dir():
        yield Finding(
            "block draft",
            FAIL if blocks else WARN,
            f"{place} is no folder",
            "draft=dflash2 and those made of it are unavailable: give draft.path or draft.repo",
        )
        return
    loading, _, _ = open_dflash2(place, torch.bfloat16)
    draft = read_dflash2(place)
    fits = (draft.vocab, draft.d_model) == (found.config.vocab, found.config.d_model)
    fits = fits and all(0 <= tap < found.config.layers for tap in draft.taps)
    nbytes = sum(one.nbytes for stored in loading.plan.reads.values() for one in stored)
    yield Finding(
        "block draft",
        OK if fits else FAIL,
        f"{draft.layers} layers, blocks of {draft.block} tokens, reads layers"
        f" {', '.join(map(str, draft.taps))}, {size(nbytes)}",
        "" if fits else "it was trained for another target: take the one that belongs to this one",
    )
