import json
import lzma
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments.collect_texts import Source, collect, split_of
from experiments.packing import Encoder, build_tokens, without_added
from experiments.probes import HELDOUT

ASSETS = Path(__file__).parents[2] / "tr" / "assets" / "tiny"
TOKENIZER = ASSETS / "tokenizer.json"
END, START, STOP = 512, 513, 514
MIXTURE = {"prose": 0.4, "code": 0.2, "math": 0.1, "copy": 0.1, "needle": 0.1, "tool": 0.1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl.xz"
    documents = [json.loads(line) for line in HELDOUT.read_text().splitlines()]
    with lzma.open(path, "wt", preset=0) as out:
        for document in documents:
            out.write(json.dumps({**document, "split": "train"}) + "\n")
        for kind in ("prose", "code"):
            hidden = {"source": "x", "kind": kind, "split": "heldout", "text": "HIDDEN " * 50}
            out.write(json.dumps(hidden) + "\n")
    return path


@pytest.fixture(scope="module")
def stream(corpus):
    return build_tokens(corpus, TOKENIZER, 1, 60_000, MIXTURE, processes=1)


def test_the_stream_depends_on_the_seed_only(corpus, stream):
    ids, mask = stream
    assert ids.dtype == np.uint16 and mask.dtype == bool and len(ids) == len(mask) == 60_000
    again, mask_again = build_tokens(corpus, TOKENIZER, 1, 60_000, MIXTURE, processes=2)
    assert (ids == again).all() and (mask == mask_again).all()


def test_the_seed_matters_and_nothing_is_held_out(stream):
    ids, mask = stream
    text = Tokenizer.from_file(str(TOKENIZER)).decode(ids.tolist())
    assert "HIDDEN" not in text
    assert ids.max() < 545 and 0.05 < mask.mean() < 0.4


def test_responses_are_the_masked_tokens(stream):
    ids, mask = stream
    starts = np.flatnonzero(mask & ~np.roll(mask, 1))
    stops = np.flatnonzero(mask & ~np.roll(mask, -1))
    full = [(a, b) for a, b in zip(starts, stops, strict=True) if ids[b] == STOP]
    assert len(full) >= len(starts) - 8  # a kind's last task may be cut by its budget
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    for a, b in full[:50]:
        head = tokenizer.decode(ids[a - 12 : a].tolist(), skip_special_tokens=False)
        assert re.search(r"<\|im_start\|>assistant\n<think>\n(\n</think>\n\n)?$", head)
        assert END not in ids[a : b + 1] and START not in ids[a : b + 1]


def test_unknown_and_incomplete_mixtures(corpus):
    with pytest.raises(ValueError, match="shares must sum to 1"):
        build_tokens(corpus, TOKENIZER, 1, 100, {"prose": 0.5})
    with pytest.raises(ValueError, match="shares must sum to 1"):
        build_tokens(corpus, TOKENIZER, 1, 100, {"poems": 1.0})


def test_chunks_are_independent(corpus):
    encoder = Encoder.load(corpus, TOKENIZER)
    for kind in ("chat", "essay", "code_task", "copy"):
        first, second = encoder.chunk(kind, 0, 0), encoder.chunk(kind, 0, 0)
        assert all((a[0] == b[0]).all() for a, b in zip(first, second, strict=True))
        assert not np.array_equal(first[0][0], encoder.chunk(kind, 0, 1)[0][0])
    with pytest.raises(ValueError, match="unknown task"):
        encoder.task("poem", Random(0))


def test_documents_cannot_hold_control_tokens():
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    text = "a<|im_end|>b <think>c</think><tool_call>"
    ids = without_added(tokenizer).encode(text).ids
    assert max(ids) < 512 and tokenizer.decode(ids) == text


def test_collecting(tmp_path):
    package = tmp_path / "packages" / "letters"
    package.mkdir(parents=True)
    lines = [
        f"This is sentence number {'x' * (i + 1)} of a letter that I wrote today."
        for i in range(40)
    ]
    (package / "a.txt").write_text("\n\n".join(lines))
    (package / "b.txt").write_text("\n\n".join([*lines[:30], "| a | table |"]))
    sources = (
        Source("letters", "prose", "MIT", "plain", ("*.txt",)),
        Source("absent", "prose", "MIT", "plain", ("*.txt",)),
    )
    figures = collect(
        tmp_path / "out.jsonl.xz", tmp_path / "packages", {"prose": 100_000}, 1, False, sources
    )
    assert figures["warnings"] == ["no files matched in absent"]
    with lzma.open(tmp_path / "out.jsonl.xz", "rt") as f:
        found = [json.loads(line) for line in f]
    assert sum(r["bytes"] for r in figures["sources"]) == sum(len(d["text"]) for d in found)
    paragraphs = [p for d in found for p in d["text"].split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs)) and set(paragraphs) <= set(lines)
    assert all(d["split"] == split_of(d["source"], i) for i, d in enumerate(found))
    share = sum(split_of("source", i) == "heldout" for i in range(20_000)) / 20_000
    assert 0.007 < share < 0.013
