"""Speculation against raw decoding: tokens per step, speed, and whether one token differs.

Four families of prompts, greedy and at one temperature with a seed. The verdict compares every
token of both with raw decoding by the same operators; `draft=mtp|lookup|raw` on the command line
judges another strategy by the same report; `draft=oracle` replays raw decoding's own output with
errors, and the record says that its acceptance is simulated.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from experiments.measure import LOOPS_COUNT, Job, Tally, encode, tally
from tr.assemble import assemble, sampling_of
from tr.config import Config, Kernel, MtpDraft, OracleDraft
from tr.decode.stream import warnings
from tr.drafts.oracle import Oracle
from tr.drafts.raw import Raw
from tr.model.sampling import sampling
from tr.progress import stage
from tr.report.record import Outcome, Verdict


@dataclass
class Options:
    prompts: int = 3  # of each family; 0: all
    temperature: float = 0.8
    sampled_tokens: int = 64  # a prompt; 0: as many as greedy
    mtp: bool = True  # decode with the MTP chain as well, beside another draft
    reference: bool = True  # time raw decoding by the reference operators too, one prompt a family


def run(config: Config) -> Outcome:
    o = config.options(Options)
    made = assemble(config)
    oracle = config.draft if isinstance(config.draft, OracleDraft) else None
    draft = Raw() if oracle else made.draft(config)
    greedy = sampling_of(config)
    heat = sampling(o.temperature, seed=config.seed, device=greedy.seed.device)
    capacity, tokens = config.kv.capacity_tokens, config.max_new_tokens
    sampled = o.sampled_tokens or tokens
    jobs = {
        "raw": Job(made, Raw(), greedy, tokens, capacity),
        "speculative": Job(made, draft, greedy, tokens, capacity),
        "raw sampled": Job(made, Raw(), heat, sampled, capacity),
        "speculative sampled": Job(made, draft, heat, sampled, capacity),
    }
    if o.mtp and config.draft.strategy != "mtp" and made.mtp is not None:
        chain = made.draft(replace(config, draft=MtpDraft(tokens=3)))
        jobs["mtp"] = Job(made, chain, greedy, tokens, capacity)
    if o.reference:
        plain = assemble(replace(config, kernel=Kernel(variant="reference")))
        jobs["raw reference"] = Job(plain, Raw(), greedy, tokens, capacity)
    families = {
        name: [encode(made.tokenizer, p) for p in prompts[: o.prompts or None]]
        for name, prompts in config.prompts.families().items()
    }
    for job in jobs.values():  # first calls compile, fill caches and check shapes
        replace(job, tokens=min(16, job.tokens)).run(next(iter(families.values()))[0])
    rows = oracle.tokens + 1 if oracle else draft.rows
    figures: dict[str, Any] = {"draft": config.draft.strategy, "rows": rows, "families": {}}
    compared, first, broken = 0, None, 0
    for family, prompts in families.items():
        results: dict[str, tuple[Tally, list[list[int]]]] = {}
        for name, job in jobs.items():
            few = prompts[:1] if name == "raw reference" else prompts
            drafts = []
            if oracle and name.startswith("speculative"):
                recorded = results[name.replace("speculative", "raw")][1]
                pairs = zip(few, recorded, strict=True)
                drafts = [replay(oracle, a, b, greedy.seed.device) for a, b in pairs]
            loops, total = family in LOOPS_COUNT, len(few) * job.tokens
            with stage(f"{family}: {name}", total, "tokens") as told:
                results[name] = tally(job, few, loops, told.advance, drafts)
        figures["families"][family] = family_figures(results)
        broken += sum(total.broken for total, _ in results.values())
        for mode in ("", " sampled"):
            pairs = zip(results["raw" + mode][1], results["speculative" + mode][1], strict=True)
            for i, (raw, spec) in enumerate(pairs):
                compared += len(raw)
                if raw != spec and first is None:
                    where = {"family": family, "prompt": i, "mode": mode.strip() or "greedy"}
                    first = {**where, **divergence(raw, spec)}
    verdict = Verdict(first is None, compared, first)
    said = made.warnings + warnings(broken)
    return Outcome(figures, verdict, oracle is not None, said)


def replay(
    config: OracleDraft, prompt: list[int], output: list[int], device: torch.device
) -> Oracle:
    """A draft that knows what raw decoding wrote after `prompt`."""
    known = torch.tensor(prompt + output, device=device)
    return Oracle(known, config.tokens, config.rate, config.seed)


def family_figures(results: dict[str, tuple[Tally, list[list[int]]]]) -> dict[str, Any]:
    """One family's numbers; speeds cover every token made, tokens per step those before a loop."""
    spec, drawn = results["speculative"][0], results["speculative sampled"][0]
    raw = [t.tokens_per_s for n, (t, _) in results.items() if n in ("raw", "raw reference")]
    fastest = max((r for r in raw if r is not None), default=None)
    speed = spec.tokens_per_s
    figures = {
        "tokens_per_step": spec.tokens_per_step,
        "sampled_tokens_per_step": drawn.tokens_per_step,
        "accepted_by_position": spec.accepted_by_position,
        "sampled_accepted_by_position": drawn.accepted_by_position,
        "raw_tokens_per_s": results["raw"][0].tokens_per_s,
        "speculative_tokens_per_s": speed,
        "sampled_speculative_tokens_per_s": drawn.tokens_per_s,
        "speedup": speed / fastest if speed and fastest else None,
        "prompts": len(results["raw"][1]),
        "counted_tokens": spec.tokens,
        "looped_tokens": spec.looped,
        "refused_drafts": spec.refused,
    }
    if "raw reference" in results:
        figures["raw_reference_tokens_per_s"] = results["raw reference"][0].tokens_per_s
    if "mtp" in results:
        figures["mtp_tokens_per_step"] = results["mtp"][0].tokens_per_step
        figures["mtp_tokens_per_s"] = results["mtp"][0].tokens_per_s
    return figures


def divergence(raw: list[int], spec: list[int]) -> dict[str, int | None]:
    """The first position of an answer where two token lists differ, and what stands there."""
    at = next((i for i, (a, b) in enumerate(zip(raw, spec, strict=False)) if a != b), None)
    at = min(len(raw), len(spec)) if at is None else at
    return {
        "position": at,
        "raw": raw[at] if at < len(raw) else None,
        "speculative": spec[at] if at < len(spec) else None,
    }
