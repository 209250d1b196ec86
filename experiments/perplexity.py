"""How well the model predicts texts: bits of each byte, perplexity of each token, in windows.

Read by the operators, the weights and the cache format that decoding a prompt takes. Our own texts
are those that the embedded model was not trained on; `params.paths`: text files, each a set. A text
begins behind the token that separates documents; its every token is judged once.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.probes import heldout_texts
from tr.assemble import Assembly, assemble
from tr.checkpoint.tokenizer import Tokenizer
from tr.config import Config
from tr.evals.perplexity import Judged, figures, nats, windows
from tr.progress import stage
from tr.report.record import Outcome

SEPARATOR = "<|endoftext|>"
KINDS = ("prose", "code")


@dataclass
class Options:
    paths: list[str] = field(default_factory=list)  # UTF-8 text files; none: our own texts
    limit: int = 0  # tokens of each set, its first ones; 0: all
    window: int = 2048  # tokens that are read at once
    stride: int = 1024  # of them, those that are judged; the rest stands before


def run(config: Config) -> Outcome:
    o = config.options(Options)
    if o.limit < 0:
        raise ValueError(f"params.limit: expected 0 or more tokens, got {o.limit}")
    list(windows(1, o.window, o.stride))
    sets = files(o.paths) if o.paths else {kind: heldout_texts(kind) for kind in KINDS}
    made = assemble(config, o.window)
    if o.window > made.shape.max_positions:
        raise ValueError(
            f"params.window: {o.window} exceeds the model's {made.shape.max_positions} positions"
        )
    found = {name: measure(made, texts, o, config.seed, name) for name, texts in sets.items()}
    return Outcome({"sets": found}, warnings=made.warnings)


def files(paths: Sequence[str]) -> dict[str, list[str]]:
    """The text of each file, by its name."""
    found: dict[str, list[str]] = {}
    for given in paths:
        path = Path(given).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"params.paths: {path} is no file")
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"params.paths: {path} is not UTF-8 at byte {error.start}") from error
        if not text:
            raise ValueError(f"params.paths: {path} is empty")
        if path.name in found:
            raise ValueError(f"params.paths: two files are called {path.name}")
        found[path.name] = [text]
    return found


def measure(
    made: Assembly, texts: Sequence[str], o: Options, seed: int, name: str
) -> dict[str, object]:
    """A set's figures; each of its texts is read by itself."""
    tokenizer, left = made.tokenizer, o.limit or None
    judged: list[Judged] = []
    first = separator(tokenizer)
    began = time.perf_counter()
    with stage(name, left, "tokens") as told:
        for text in texts:
            ids = [first, *tokenizer.encode(text)[:left]]
            for w in windows(len(ids), o.window, o.stride):
                loss = nats(made.model, ids[w.start : w.end], w.scored - w.start)
                own = ids[w.scored : w.end]
                size = sum(len(tokenizer.pieces[i] or b"") for i in own)
                judged.append(Judged(loss.sum().item(), len(own), size))
                told.advance(len(own))
            left = None if left is None else left - len(ids) + 1
            if left == 0:
                break
    seconds = time.perf_counter() - began
    found = figures(judged, seed)
    sha256 = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    speed = found["tokens"] / seconds
    return {**found, "texts": len(texts), "set_sha256": sha256, "tokens_per_s": speed}


def separator(tokenizer: Tokenizer) -> int:
    """What stands before a text: the token between documents, else the end token."""
    known = [tokenizer.control[SEPARATOR]] if SEPARATOR in tokenizer.control else tokenizer.eos
    if not known:
        raise ValueError(f"tokenizer: it has neither {SEPARATOR} nor an end token to begin with")
    return known[0]
