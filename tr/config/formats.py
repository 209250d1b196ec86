"""What matrices and caches are held as, and what a prompt is multiplied with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from omegaconf import MISSING

from tr.config.choice import PLANNED, check_choice

if TYPE_CHECKING:  # torch takes seconds to import, and a typing error should not wait for it
    import torch

QUANT_FORMATS = ("bf16", "int4_g128", "table4")
QUANT_METHODS = ("rtn", "mse", "gptq", "gptaq", "refined", "tuned")
KV_FORMATS = ("bf16", "fp8", "int8", "int4", "kvarn", "kvarn_v4")
GRID = 64  # tokens by which the delta rule goes
MOST_TOKENS = 32768  # of a chunk


@dataclass
class Quant:
    """What matrices are held as; `method` says how their codes are found, where there are any.

    rtn at load; +exp=quantize makes a checkpoint by any. rtn: by the ends of a group's weights;
    mse: by the range of least error; gptq: each error carried on to later inputs; gptaq: that
    toward the unquantised model's outputs; refined: then codes and scales fitted to each other;
    tuned: then scales, minimums and norms by the KL divergence of the whole model.
    `search`: of gptq's ranges: none, plain, hessian (weighted by what an error costs). `damp`: of
    the Hessian, in mean diagonals. `ordered`: inputs of most power first, groups whole.
    `zero_point`: integer makes minimums integer multiples of scales, as +exp=export
    params.to=compressed_tensors needs them. The embedding stays in bf16; `head` and `mtp` go by the
    method (same) or stay too (bf16); a `draft` goes by rtn or mse or stays.
    """

    format: str = MISSING
    method: str = "rtn"
    search: str = "hessian"
    damp: float = 0.01
    ordered: bool = True
    zero_point: str = "free"
    head: str = "same"
    mtp: str = "same"
    draft: str = "bf16"

    def __post_init__(self) -> None:
        check_choice("quant.format", self.format, QUANT_FORMATS, PLANNED["quant"])
        check_choice("quant.method", self.method, QUANT_METHODS)
        check_choice("quant.search", self.search, ("none", "plain", "hessian"))
        check_choice("quant.zero_point", self.zero_point, ("free", "integer"))
        if self.zero_point == "integer" and self.method == "tuned":
            raise ValueError(
                "quant.zero_point=integer: method=tuned moves scales and minimums freely; use"
                " quant.method=refined"
            )
        if self.format == "table4" and (self.zero_point, self.method == "tuned") != ("free", False):
            raise ValueError(
                "quant=table4: zero_point=integer and method=tuned are for int4; use"
                " quant.zero_point=free and quant.method=refined"
            )
        check_choice("quant.head", self.head, ("same", "bf16"))
        check_choice("quant.mtp", self.mtp, ("same", "bf16"))
        check_choice("quant.draft", self.draft, ("bf16", "rtn", "mse"))
        if not 0 < self.damp <= 1:
            raise ValueError(f"quant.damp must lie in (0, 1], got {self.damp:g}")


@dataclass
class Kv:
    """The cache's format, and the most tokens (prompt and output) one run may hold."""

    format: str = MISSING
    capacity_tokens: int = 8192
    value_bits: int = 2  # of kvarn, 2 or 4: format=kvarn with 4 is kvarn_v4

    def __post_init__(self) -> None:
        check_choice("kv.format", self.format, KV_FORMATS, PLANNED["kv"])
        check_choice("kv.value_bits", str(self.value_bits), ("2", "4"))
        if (self.format, self.value_bits) == ("kvarn", 4):
            self.format = "kvarn_v4"
        if self.capacity_tokens < 1:
            raise ValueError(f"kv.capacity_tokens must be positive, got {self.capacity_tokens}")


@dataclass
class Prefill:
    """How prompts are read, `chunk_tokens` at a time; 0: 512 on a CPU, 4096 on a GPU.

    4-bit weights meet many tokens as bf16 numbers, of which at most `scratch_mib` are restored at
    once, or as 8-bit ones, where `activations` are.
    """

    activations: str = MISSING
    chunk_tokens: int = 0
    scratch_mib: int = 512

    def __post_init__(self) -> None:
        check_choice("prefill.activations", self.activations, ("bf16", "int8", "fp8"))
        if self.chunk_tokens % GRID or not 0 <= self.chunk_tokens <= MOST_TOKENS:
            raise ValueError(
                f"prefill.chunk_tokens must be a multiple of {GRID} up to {MOST_TOKENS}, or 0 for"
                f" the device's own, got {self.chunk_tokens}"
            )
        if self.scratch_mib < 1:
            raise ValueError(f"prefill.scratch_mib must be positive, got {self.scratch_mib}")

    def tokens(self, device: "torch.device") -> int:
        """Tokens of a chunk on a device."""
        return self.chunk_tokens or (4096 if device.type == "cuda" else 512)
