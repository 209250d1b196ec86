"""Records as experiments leave them, small."""

from copy import deepcopy

from tr.report import record
from tr.report.record import Outcome, Verdict

CARD = {"kind": "cuda", "name": "a card", "read_gb_per_s": 4480.0, "copy_gb_per_s": 4265.2}
FAMILIES = {
    name: {
        "tokens_per_step": 3.0 + i,
        "sampled_tokens_per_step": 2.0 + i,
        "accepted_by_position": [0.9, 0.7, 0.4],
        "raw_tokens_per_s": 51.0,
        "speculative_tokens_per_s": 120.0,
        "counted_tokens": 2048,
    }
    for i, name in enumerate(("essay", "code", "math", "copy"))
}
TIME = {"us": 10.0, "gb_per_s": 2246.0, "wall_fraction": 0.5, "bytes": 22_460, "captured": True}
DRAFTS = {
    "strategies": {
        name: {
            family: {
                "tokens_per_s": 100.0 + i,
                "tokens_per_step": 1.0 + i,
                "sampled_tokens_per_step": 1.0 + i,
                "accepted_by_position": [0.5] * i,
            }
            for family in ("code", "copy")
        }
        for i, name in enumerate(("raw", "mtp", "dflash2"))
    },
    "steps": {"raw": {"1": {"step_ms": 7.7}}, "chain": {"16 (copy)": {"step_ms": 9.0}}},
}
LENGTHS = {
    "mtp": {
        str(n): {
            "tokens_per_step": None if n == 64 else 2.0,
            "least_tokens_per_step": 1.0,
            "most_tokens_per_step": 3.0,
            "accepted_by_position": [0.8, 0.4],
        }
        for n in (64, 512, 2048)
    }
}
SWITCHES = {
    name: {"1": {"on_step_ms": 5.0, "off_step_ms": off, "on_drift_ms": 0.01}}
    for name, off in (("sample", 4.9), ("overlap", 5.5), ("jit", 40.0))
}
FIGURES = {
    "dflash2_verify": {"draft": "dflash2", "families": FAMILIES},
    "draft_compare": DRAFTS,
    "accept_curve": {"strategies": LENGTHS},
    "draft_vocab": {
        "coverage": {
            str(n): {"counted_coverage": n / 600, "first_coverage": None} for n in (75, 150, 300)
        }
    },
    "train_tiny": {"losses_nats": {str(n): 6.0 / n for n in range(1, 40)}},
    "decode": {
        "wall_gb_per_s": 4492.0,
        "contexts": {
            context: {"step_ms": 6.5, "tokens_per_s": 154.0, "bytes_per_step": 1.4e10} | share
            for context, share in (("0", {"wall_fraction": 0.48}), ("8192", {"wall_fraction": 0.4}))
        },
    },
    "context_sweep": {
        "strategies": {
            name: {
                n: {"tokens_per_s": 90.0, "wall_fraction": 0.6} if "raw" in name else {}
                for n in ("0", "512")
            }
            for name in ("raw, bf16", "raw, fp8", "dflash2, fp8")
        }
    },
    "verify_cost": {"rows": {"1": {"step_ms": 6.5, "ratio": 1.0}, "8": {"step_ms": 7, "ratio": 2}}},
    "prefill": {"lengths": {"2048": {"tokens_per_s": 9000.0, "matmul_fraction": 0.7}}},
    "concurrency": {
        "streams": {
            n: {"aggregate_tokens_per_s": 90.0, "stream_tokens_per_s": 9.0} for n in ("1", "8")
        }
    },
    "kernel_bench": {
        "wall_gb_per_s": 4492.0,
        "int4_matmul": {
            "triton": {"mlp down r1": TIME, "mlp down r8": {**TIME, "wall_fraction": 0.7}},
            "tile": {"mlp down r1": {**TIME, "wall_fraction": 0.1}},
        },
        "matmul": {"tile": {"lm_head r1": TIME}},
        "silu_mul": {"triton": {"d_ff r1": TIME}},
    },
    "step_profile": {
        "rows": {"1": {"launches": 3, "step_us": 100.0, "busy_us": 90.0, "gap_us": 10.0}},
        "operators": {"1": {"sample": {"us": 30.0}, "int4_matmul": {"us": 60.0}}},
    },
    "compile_compare": {
        "backends": {
            "eager": {"build_s": 0.1, "step_ms": 9.0, "equal": True, "refused": ""},
            "cuda_graph": {"build_s": None, "step_ms": None, "equal": None, "refused": "no card"},
        }
    },
    "ablation": {
        "baseline": {"1": {"step_ms": 5.0}},
        "switches": SWITCHES,
        "cumulative": SWITCHES,
    },
    "quality": {
        "candidates": {
            "rtn": {"kl_mean": 0.06, "bits_per_weight": 4.25, "top1": 0.9},
            "refined": {"kl_mean": 0.015, "bits_per_weight": 4.25, "top1": 0.95},
        }
    },
    "kv_quality": {
        "contexts": {
            "2048": {
                "noise floor": {"kl_mean": 0.0},
                "fp8": {"kl_mean": 0.0005, "bytes_per_token": 512},
            }
        }
    },
}
CONFIG = {
    "model": {"name": "tiny"},
    "weights": {"source": "embedded"},
    "quant": {"format": "bf16"},
    "kv": {"format": "bf16"},
    "kernel": {"variant": "auto"},
}


def made(experiment="dflash2_verify", figures=None, config=None, simulated=False, **device):
    """A record; `device` overrules the card's facts."""
    outcome = Outcome(
        deepcopy(FIGURES[experiment] if figures is None else figures),
        Verdict(True, 4096),
        simulated,
    )
    settings = {**CONFIG, **(config or {})}
    return record.build(outcome, experiment, "python -m it", settings, 0, {**CARD, **device})
