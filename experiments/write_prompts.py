"""Write the held-out prompt files and the held-out documents of the probes.

Everything comes from the corpus's held-out split and from seeds that training does not use.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml
from tokenizers import Tokenizer

from experiments import math_tasks, tasks
from experiments.packing import Document, read_corpus
from tr.config import Config
from tr.report.record import Outcome

ABOUT = {
    "essay": "Held-out running prose to be continued.",
    "code": "Held-out Python modules to be continued after their first lines.",
    "math": "Held-out arithmetic word problems.",
    "copy": "Held-out documents to be repeated verbatim.",
    "chinese": "Held-out Chinese prose to be continued.",
    "mixed": "Two held-out prompts of each family.",
}
HELDOUT_BYTES = {"prose": 100_000, "code": 28_000, "chinese": 12_000}
Prompt = dict[str, str]


@dataclass
class Options:
    corpus: str = "data/texts.jsonl.xz"
    tokenizer: str = "tr/assets/tiny/tokenizer.json"
    prompts: str = "configs/prompts"
    heldout: str = "tr/assets/tiny/heldout.jsonl"
    count: int = 12


def spread(documents: Sequence[Document], rng: Random) -> list[Document]:
    """One document of each package, then the second ones: no package dominates."""
    groups: dict[str, list[Document]] = {}
    for document in rng.sample(documents, len(documents)):
        package = document["source"].split(":")[0]
        groups.setdefault("wesnoth" if "wesnoth" in package else package, []).append(document)
    rounds = max(map(len, groups.values()))
    return [g[i] for i in range(rounds) for g in groups.values() if i < len(g)]


def usable(text: str) -> bool:
    """No interpolation of the config files, nothing that YAML must quote."""
    lines = text.removesuffix("\n").split("\n")
    return "${" not in text and all(x.isprintable() and x == x.rstrip() for x in lines)


def openings(documents: Sequence[Document], least: int, most: int, rest: int) -> Iterator[str]:
    """The beginning of one long paragraph of each document, then of others.

    Cut a few words into a sentence: after a whole one, a document may simply be over.
    """
    found: list[list[str]] = []
    for document in documents:
        found.append([])
        for paragraph in document["text"].split("\n\n"):
            ends = [m.end() for m in re.finditer(r"[.!?](?= )|[。！？]", paragraph)]
            cuts = [e for e in ends if least <= e <= most and len(paragraph) - e >= rest]
            if cuts and usable(paragraph):
                begun = re.compile(r"(?: \S+){3}|\S{6}").match(paragraph, cuts[-1])
                if begun:
                    found[-1].append(paragraph[: begun.end()])
    for i in range(max(map(len, found))):
        yield from (texts[i] for texts in found if i < len(texts))


def module_starts(documents: Sequence[Document]) -> Iterator[str]:
    """Docstring, imports and the first lines of the first function of each module."""
    for document in documents:
        text = document["text"]
        first = re.search(r"^( *)def [^:]*:\n(\1    .*\n){1,2}", text, flags=re.M)
        if (
            not first
            or not re.match(r'(r?"""|import |from |__all__)', text)
            or "import " not in text
        ):
            continue
        start = text[: first.end()]
        if 250 <= len(start) <= 1_100 and len(text) > 3 * len(start) and usable(start):
            yield start


def copies(tokenizer: Tokenizer, documents: Sequence[Document]) -> Iterator[str]:
    for i, document in enumerate(documents):
        rng = Random(f"heldout/copy/prompts/{i}")
        text = tasks.passage(rng, document["text"], 450, 800)
        if 220 <= len(tokenizer.encode(text).ids) <= 400 and usable(text):
            yield rng.choice(tasks.COPY_ONCE).replace("{}", text)


def families(heldout: Sequence[Document], tokenizer: Tokenizer, n: int) -> dict[str, list[Prompt]]:
    rng = Random("heldout/prompts")
    kinds = {k: [d for d in heldout if d["kind"] == k] for k in ("prose", "code", "chinese")}
    prose, code, chinese = (spread(kinds[k], rng) for k in ("prose", "code", "chinese"))
    mixed = [d for i, d in enumerate(spread(kinds["prose"], rng)) if i % 4 or not code]
    for i, document in enumerate(code[:8]):
        mixed.insert(4 * i + 3, document)
    math = (math_tasks.problem(Random(f"heldout/math/{i}"))[0] for i in range(n))
    texts = {
        "essay": ("plain", openings(prose, 200, 480, 250)),
        "code": ("plain", module_starts(code)),
        "math": ("chat", math),
        "copy": ("chat", copies(tokenizer, mixed)),
        "chinese": ("plain", openings(chinese, 40, 120, 40)),
    }
    found = {
        name: [{"text": t, "kind": kind} for _, t in zip(range(n), items, strict=False)]
        for name, (kind, items) in texts.items()
    }
    found["mixed"] = [p for name in ("essay", "code", "math", "copy") for p in found[name][:2]]
    return found


class _Dumper(yaml.SafeDumper):
    """Lists indented below their key; texts as block scalars."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if len(text) > 40 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def write_family(path: Path, name: str, prompts: list[Prompt]) -> None:
    content = {"defaults": ["schema"], "name": name, "prompts": prompts}
    body = yaml.dump(content, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=10_000)
    path.write_text(f"# {ABOUT[name]}\n{body}")


def write_heldout(path: Path, heldout: Sequence[Document]) -> None:
    """Held-out documents of all packages, up to the bytes of each kind."""
    room = dict(HELDOUT_BYTES)
    with path.open("w") as out:
        for document in spread(heldout, Random("heldout/documents")):
            size = len(document["text"].encode())
            if 1_500 <= size <= min(room[document["kind"]], 20_500):
                room[document["kind"]] -= size
                out.write(json.dumps(document, ensure_ascii=False) + "\n")


def run(config: Config) -> Outcome:
    options = config.options(Options)
    heldout = [d for d in read_corpus(options.corpus) if d["split"] == "heldout"]
    tokenizer = Tokenizer.from_file(options.tokenizer)
    found = families(heldout, tokenizer, options.count)
    for name, prompts in found.items():
        write_family(Path(options.prompts) / f"{name}.yaml", name, prompts)
    write_heldout(Path(options.heldout), heldout)
    figures = {"heldout_bytes": Path(options.heldout).stat().st_size}
    figures |= {f"{name}_prompts": len(prompts) for name, prompts in found.items()}
    return Outcome(figures=figures)
