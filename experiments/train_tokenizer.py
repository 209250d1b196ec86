"""Train the byte-level BPE of the tiny model and write its tokenizer files.

512 base ids (256 bytes and merges), then the 33 added tokens of Qwen3.5 and later in their order.
"""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from experiments import tasks
from experiments.packing import read_corpus
from tr.config import Config
from tr.report.record import Outcome

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PLAIN = (  # added, yet kept by decoding without special tokens
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
ADDED = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", *PLAIN,
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip
SAMPLE = {"prose": 8_000_000, "code": 7_000_000, "chinese": 500_000, "tasks": 2_000_000}


@dataclass
class Options:
    corpus: str = "data/texts.jsonl.xz"
    output: str = "tr/assets/tiny"
    base: int = 512
    characters: dict[str, int] = field(default_factory=lambda: dict(SAMPLE))
    max_positions: int = 8192
    seed: int = 0


def train(texts: Iterable[str], base: int) -> Tokenizer:
    """Byte-level BPE with `base` ids of bytes and merges, and the added tokens after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=base, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != base:
        got = tokenizer.get_vocab_size()
        raise ValueError(f"the sample gives {got} of {base} base ids; train on more text")
    for token in ADDED:
        special = token not in PLAIN
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    return tokenizer


def sample(corpus: str, characters: dict[str, int], seed: int) -> Iterator[str]:
    """Training texts in a seeded order, up to the characters of each kind."""
    rng = random.Random(f"{seed}/tokenizer")
    documents = [d for d in read_corpus(corpus) if d["split"] == "train"]
    rng.shuffle(documents)
    for kind, room in characters.items():
        texts = (d["text"] for d in documents if d["kind"] == kind)
        for text in tasks.short_texts(rng) if kind == "tasks" else texts:
            if room <= 0:
                break
            room -= len(text)
            yield text


def write(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(compact + "\n")
    ids = {token: tokenizer.token_to_id(token) for token in ADDED}
    decoder = {
        str(i): {
            "content": t, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": t not in PLAIN,
        }
        for t, i in ids.items()
    }  # fmt: skip
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": max_positions,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    generation = {
        "bos_token_id": pad,
        "do_sample": True,
        "eos_token_id": [end, pad],
        "pad_token_id": pad,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }
    for name, content in (("tokenizer_config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def bytes_per_token(tokenizer: Tokenizer, corpus: str, documents: int = 100) -> dict[str, float]:
    """Held-out bytes over tokens, by kind."""
    heldout = [d for d in read_corpus(corpus) if d["split"] == "heldout"]
    figures = {}
    for kind in sorted({d["kind"] for d in heldout}):
        texts = [d["text"] for d in heldout if d["kind"] == kind]
        texts = texts[:documents]
        tokens = sum(len(e.ids) for e in tokenizer.encode_batch(texts))
        figures[kind] = round(sum(len(t.encode()) for t in texts) / tokens, 4)
    return figures


def run(config: Config) -> Outcome:
    options = config.options(Options)
    tokenizer = train(sample(options.corpus, options.characters, options.seed), options.base)
    folder = Path(options.output)
    write(tokenizer, folder, options.max_positions)
    figures = {
        "vocab": tokenizer.get_vocab_size(),
        "file_bytes": (folder / "tokenizer.json").stat().st_size,
        "bytes_per_token": bytes_per_token(tokenizer, options.corpus),
    }
    return Outcome(figures=figures)
