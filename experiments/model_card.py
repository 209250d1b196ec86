"""Write the embedded model's card: every number in it comes from a committed record."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tr.config import Config
from tr.report.machine import ROOT
from tr.report.record import Outcome, load
from tr.report.tables import number

STAGES = ("train_tiny-tiny", "train_tiny_long-tiny")


@dataclass
class Options:
    records: str = "experiments/records"
    card: str = "tr/assets/tiny/README.md"


def row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def stage_rows(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [
        row("stage", "steps", "tokens", "training s", "first loss", "last loss, nats"),
        row("---", *["---:"] * 5),
    ]
    for name, record in stages.items():
        f = record["figures"]
        losses = list(f["losses_nats"].values())
        seen = number(f["tokens_seen"])
        seconds = number(f["train_s"])
        rows.append(row(name, number(f["steps"]), seen, seconds, losses[0], losses[-1]))
    return rows


def source_rows(sources: list[Mapping[str, Any]]) -> list[str]:
    rows = [row("source", "kind", "licence", "documents", "bytes")]
    rows.append(row("---", "---", "---", "---:", "---:"))
    for s in sources:
        cells = (s["package"], s["kind"], s["licence"], number(s["documents"]), number(s["bytes"]))
        rows.append(row(*cells))
    return rows


def card(texts: Mapping[str, Any], stages: Mapping[str, Any], draft: Mapping[str, Any]) -> str:
    """Markdown of the card, from the records of collecting texts and of training."""
    last = list(stages.values())[-1]["figures"]
    bits, probes, d = last["held_out_bits_per_byte"], last["probe_rates"], draft["figures"]
    device = draft["device"]["name"]
    parameters = last["parameters"] + d["draft_parameters"] + d["mtp_parameters"]
    overlap = ", ".join(f"{value:.2f}" for value in d["overlap_by_row"])
    lines = [
        "# The embedded model",
        "",
        "A hybrid Gated DeltaNet and attention model of Qwen3.8-27B's shape in small (8 layers,",
        "width 384, 8,192 tokens), with its multi-token-prediction head, its DFlash 2 draft",
        "(`draft/`) and its own byte-level BPE tokenizer, in the ordinary checkpoint layout. It",
        "exists so that every part of this project runs on any laptop; it knows next to nothing.",
        f"{number(parameters)} parameters in bfloat16: {number(last['parameters'])} target,"
        f" {number(d['mtp_parameters'])} MTP head, {number(d['draft_parameters'])} draft.",
        "",
        "Licence: Apache-2.0 for the weights and files of this folder. The texts keep their own",
        "licences, listed below; `heldout.jsonl` quotes some of them for the tests.",
        "",
        "## Training",
        "",
        f"On one {device}, from scratch, by the experiments `train_tiny` (in stages) and",
        "`train_draft`; their records are in `experiments/records/h200/`. While the target",
        "trains, auxiliary heads guess the tokens after the next one; they are no part of the",
        "model (`experiments/lookahead.py`).",
        "",
        *stage_rows(stages),
        "",
        f"Draft and MTP head: {number(d['steps'])} steps, {number(d['train_s'])} s, on"
        f" {number(d['regenerated_tokens'])} tokens that the target wrote itself"
        f" ({number(d['regenerate_s'])} s); loss {list(d['losses_nats'].values())[-1]} nats at the"
        f" end; overlap with the target by row of the block: {overlap}.",
        "",
        "## Held-out quality",
        "",
        row("measure", "value"),
        row("---", "---:"),
        *[row(f"bits per byte, {kind}", number(value)) for kind, value in bits.items()],
        row("needle at 2,048 tokens, share of 20 trials", number(probes["needle"])),
        row("verbatim copy of 200 tokens, share of 20 trials", number(probes["copy"])),
        "",
        "Both probes count a trial only if each token of the answer is the argmax, teacher-forced.",
        "Under greedy decoding the model loops soon on open text; acceptance figures leave looped",
        "tokens out. Its Chinese is thin, and its arithmetic is often wrong.",
        "",
        "## Texts",
        "",
        "Documentation, prose and source code that a Debian machine and the Python distribution",
        "carry (`+exp=collect_texts`), and synthetic tasks: arithmetic problems, verbatim copies,",
        "needles, short chats, tool calls. The split is by document.",
        "",
        *source_rows(texts["figures"]["sources"]),
        "",
    ]
    return "\n".join(lines)


def run(config: Config) -> Outcome:
    o = config.options(Options)
    folder = ROOT / o.records
    stages = {name: load(folder / "h200" / f"{name}.json") for name in STAGES}
    draft = load(folder / "h200" / "train_draft-tiny.json")
    texts = load(folder / "cpu" / "collect_texts-debian.json")
    path = ROOT / o.card
    path.write_text(card(texts, stages, draft), encoding="utf-8")
    return Outcome({"card_bytes": Path(path).stat().st_size})
