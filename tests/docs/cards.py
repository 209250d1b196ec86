"""docs/cards.md's tables, computed by the memory plan: python -m tests.docs.cards writes them."""

from itertools import product

from experiments import plan
from kernels.define import Target
from tr import roofline
from tr.assemble import random_dflash2
from tr.budget import GRAPHS, draft_bytes, ring_bytes
from tr.config import Config, Dflash2Draft
from tr.operators import operators
from tr.overrides import load
from tr.report.machine import ROOT
from tr.report.record import write
from tr.report.tables import Table, markdown

PAGE = "docs/cards.md"
BEGIN, END = "<!-- cards:begin -->", "<!-- cards:end -->"
CARDS = {  # compute capability, and where its bandwidth is from
    "h200": ((9, 0), "measured"),
    "h100": ((9, 0), "nominal"),
    "rtx5090": ((12, 0), "reported"),
    "rtx3090": ((8, 6), "nominal"),
}
CACHES = ("bf16", "fp8", "int8", "int4")
CONTEXTS = (0, 32768, 131072)
WEIGHTS = "int4_g128"
OF_A_FILE = ("gates, convolutions, norms", "embedding", "MTP head")


def config(*words: str) -> Config:
    return load(["+exp=plan", "draft=dflash2", f"quant={WEIGHTS}", *words])


def is_taken(kv: str, capability: tuple[int, int]) -> bool:
    """Whether a card of that capability reads such a cache by an operator written for it."""
    chosen = config(f"kv={kv}")
    try:
        operators(chosen, chosen.model.spec(), CONTEXTS[-1], Target("cuda", capability))
    except ValueError:
        return False
    return True


def fits() -> Table:
    """A row for each card and cache: what fits, and a raw step's speed at the read wall."""
    chosen, limits, rows = config(), {}, []
    for name, (_, source) in CARDS.items():
        card = load(["+exp=plan", f"device={name}"]).device
        assert (source == "nominal") == (card.read_gb_per_s is None)
        reads = card.read_gb_per_s or card.nominal_gb_per_s
        limits[name] = {"memory_gib": card.memory_gib, "read_gb_per_s": reads}
    chosen.params = {
        "weights": [WEIGHTS],
        "kv": list(CACHES),
        "contexts": list(CONTEXTS),
        "cards": limits,
        "reserve_gib": GRAPHS / 2**30,
    }
    floors = plan.run(chosen).figures["floors"]
    for name, kv in product(CARDS, CACHES):
        capability, source = CARDS[name]
        first = (name, f"{limits[name]['read_gb_per_s']:,.0f}, {source}", kv)
        if not is_taken(kv, capability):
            rows.append((*first, "refused", *["-"] * len(CONTEXTS)))
            continue
        found = floors[f"{name}: {WEIGHTS}, {kv} cache"]
        times = (found[f"floor_at_{context}_ms"] for context in CONTEXTS)
        speeds = (f"{1e3 / ms:.0f}" if ms else "-" for ms in times)
        rows.append((*first, f"{found['largest_context_tokens']:,}", *speeds))
    heads = ("card", "reads, GB/s", "cache", "most tokens")
    speeds = (f"at {context:,}" for context in CONTEXTS)
    return Table("fits", (*heads, *speeds), tuple(rows))


def files() -> Table:
    """Bytes of the files that a card's run needs."""
    shape, chosen = config().model.spec(), config().draft
    assert isinstance(chosen, Dflash2Draft)
    rows = []
    kinds = {"bf16": "the text part in bf16, MTP head included", WEIGHTS: "the same in 4 bits"}
    for weights, said in kinds.items():
        items = roofline.plan(shape, weights).items + roofline.mtp_items(shape, weights, "bf16", 0)
        kept = {*shape.matrices, *OF_A_FILE}
        rows.append((said, sum(item.held for item in items if item.name in kept)))
    draft = random_dflash2(chosen.random, shape)
    tables = 2 * 2 * draft.max_positions * draft.d_head // 2  # made, not stored
    rows.append(("the DFlash 2 draft", draft_bytes(draft, "bf16") - ring_bytes(draft) - tables))
    told = tuple((said, f"{size / 1e9:.1f} GB") for said, size in rows)
    return Table("files", ("files", "size"), told)


def block() -> str:
    return "\n\n".join(markdown(table, "---|") for table in (files(), fits()))


def page(text: str) -> str:
    """`text` with the tables between its markers."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: expected {BEGIN} and {END}; put them where the tables stand")
    return f"{head}{BEGIN}\n\n{block()}\n\n{END}{tail}"


if __name__ == "__main__":
    write(ROOT / PAGE, page((ROOT / PAGE).read_text(encoding="utf-8")))
