"""Hydra groups and their schemas: one plain dataclass per group, checked when it becomes an object.

Values arrive from configs/ and the command line; nothing below the experiments sees Hydra.
"""

from hydra.core.config_store import ConfigStore

from tr.config.choice import PLANNED, check_choice, check_range, unknown
from tr.config.commands import CHECKS, Config, Doctor, Generate, Run, Serve
from tr.config.device import Device
from tr.config.draft import (
    DEPTH,
    STRATEGIES,
    VERIFY_ROWS,
    AutoDraft,
    ChainDraft,
    Dflash2Draft,
    Dflash2LookupDraft,
    Dflash2Shape,
    Draft,
    DraftHead,
    LookupDraft,
    MtpDraft,
    OracleDraft,
    RawDraft,
)
from tr.config.formats import KV_FORMATS, QUANT_METHODS, Kv, Prefill, Quant
from tr.config.kernel import FUSED, Jit, Kernel
from tr.config.model import CheckpointWeights, EmbeddedWeights, Model, RandomWeights, Weights
from tr.config.text import Prompt, Prompts, Sampling

__all__ = [
    "CHECKS",
    "DEPTH",
    "FUSED",
    "GROUPS",
    "KV_FORMATS",
    "PLANNED",
    "QUANT_METHODS",
    "ROOTS",
    "STRATEGIES",
    "VERIFY_ROWS",
    "AutoDraft",
    "ChainDraft",
    "CheckpointWeights",
    "Config",
    "Device",
    "Dflash2Draft",
    "Dflash2LookupDraft",
    "Dflash2Shape",
    "Doctor",
    "Draft",
    "DraftHead",
    "EmbeddedWeights",
    "Generate",
    "Jit",
    "Kernel",
    "Kv",
    "LookupDraft",
    "Model",
    "MtpDraft",
    "OracleDraft",
    "Prefill",
    "Prompt",
    "Prompts",
    "Quant",
    "RandomWeights",
    "RawDraft",
    "Run",
    "Sampling",
    "Serve",
    "Weights",
    "check_choice",
    "check_range",
    "register",
    "unknown",
]

GROUPS: dict[str, dict[str, type]] = {  # group -> schema name -> dataclass
    "model": {"schema": Model},
    "weights": {
        "embedded_schema": EmbeddedWeights,
        "checkpoint_schema": CheckpointWeights,
        "random_schema": RandomWeights,
    },
    "quant": {"schema": Quant},
    "kv": {"schema": Kv},
    "prefill": {"schema": Prefill},
    "kernel": {"schema": Kernel},
    "draft": {
        "raw_schema": RawDraft,
        "mtp_schema": MtpDraft,
        "dflash2_schema": Dflash2Draft,
        "lookup_schema": LookupDraft,
        "dflash2_lookup_schema": Dflash2LookupDraft,
        "chain_schema": ChainDraft,
        "auto_schema": AutoDraft,
        "oracle_schema": OracleDraft,
    },
    "jit": {"schema": Jit},
    "sampling": {"schema": Sampling},
    "prompts": {"schema": Prompts},
    "device": {"schema": Device},
}
ROOTS: dict[str, type] = {  # primary YAML -> dataclass
    "config": Config,
    "generate": Generate,
    "serve": Serve,
    "doctor": Doctor,
}


def register() -> None:
    """Put every schema into Hydra's store; the YAML files name them first in their defaults."""
    store = ConfigStore.instance()
    for group, schemas in GROUPS.items():
        for name, schema in schemas.items():
            store.store(group=group, name=name, node=schema)
    for name, schema in ROOTS.items():
        store.store(name=f"{name}_schema", node=schema)
