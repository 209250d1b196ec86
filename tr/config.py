"""Hydra groups and their schemas: one plain dataclass per group, checked when it becomes an object.

Values arrive from configs/ and the command line; nothing below the experiments sees Hydra.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from os.path import expanduser
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tr.progress import MODES

if TYPE_CHECKING:  # torch takes seconds to import, and a typing error should not wait for it
    import torch

    from tr.model.config import ModelConfig

T = TypeVar("T")
PLANNED = {  # names that a later stage builds: refused as such, not as typing errors
    "quant": (),
    "kv": (),
    "kernel": (),
    "draft": (),
    "jit": ("tensorrt",),
}
QUANT_FORMATS = ("bf16", "int4_g128", "table4")
QUANT_METHODS = ("rtn", "mse", "gptq", "gptaq", "refined", "tuned")
KV_FORMATS = ("bf16", "fp8", "int8", "int4", "kvarn", "kvarn_v4")
FUSED = ("int4_matmul_beside", "int4_gate_up", "int4_add_norm")  # that plainer ones can make up
DEPTH = 64  # layers of the target that draft.random.taps are stated for
GRID = 64  # tokens by which the delta rule goes
MOST_TOKENS = 32768  # of a chunk
VERIFY_ROWS = 16  # the most rows one verify step takes: an anchor and 15 draft tokens


def unknown(where: str, name: str, valid: Iterable[str]) -> str:
    """The message for a name that is not in `valid`: the nearest one, then all of them."""
    names = sorted(valid)
    if not names:
        return f"{where} {name!r}: there is none to choose from"
    best = max(names, key=lambda v: SequenceMatcher(None, name.lower(), v.lower()).ratio())
    return f"{where} {name!r}; did you mean {best!r}? (valid: {', '.join(names)})"


def check_choice(key: str, value: str, built: Iterable[str], planned: Iterable[str] = ()) -> None:
    if value in planned:
        raise ValueError(f"{key}={value} is not built yet; built: {', '.join(built)}")
    if value in ("True", "False"):
        raise ValueError(f"{key} is {value}: YAML reads a bare on, off, yes or no so; quote it")
    if value not in built:
        raise ValueError(unknown(f"unknown {key}", value, built))


def check_range(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{key} must lie in {low:g}..{high:g}, got {value:g}")


@dataclass
class Model:
    """A shape of the hybrid model; every n-th layer is full attention, the others linear."""

    name: str = MISSING
    vocab: int = MISSING
    d_model: int = MISSING
    d_ff: int = MISSING
    layers: int = MISSING
    heads: int = MISSING
    kv_heads: int = MISSING
    d_head: int = MISSING
    rotary_dim: int = MISSING
    k_heads: int = MISSING
    v_heads: int = MISSING
    d_k: int = MISSING
    d_v: int = MISSING
    tie_embeddings: bool = MISSING
    max_positions: int = MISSING
    full_attention_interval: int = 4
    rope_theta: float = 1e7
    conv_width: int = 4
    eps: float = 1e-6
    mtp_layers: int = 1

    def __post_init__(self) -> None:
        if self.layers < 1 or self.full_attention_interval < 1:
            raise ValueError("model.layers and model.full_attention_interval must be positive")
        for many, few in (("heads", "kv_heads"), ("v_heads", "k_heads"), ("d_head", "rotary_dim")):
            a, b = getattr(self, many), getattr(self, few)
            if b < 1 or a < b or (many != "d_head" and a % b):
                raise ValueError(f"model.{many} = {a} does not fit model.{few} = {b}")

    def spec(self) -> "ModelConfig":
        """The frozen spec that the model code takes."""
        from tr.model.config import ModelConfig

        kinds = ("linear_attention", "full_attention")
        n = self.full_attention_interval
        layer_types = tuple(kinds[(i + 1) % n == 0] for i in range(self.layers))
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        del own["name"], own["layers"], own["full_attention_interval"]
        return ModelConfig(layer_types=layer_types, **own)


@dataclass
class Weights:
    source: str = MISSING

    def __post_init__(self) -> None:
        check_choice("weights.source", self.source, ("embedded", "checkpoint", "random"))


@dataclass
class EmbeddedWeights(Weights):
    source: str = "embedded"


@dataclass
class CheckpointWeights(Weights):
    """A folder (`path`), or a hub repository (`repo` at `revision`).

    Quantised matrices are held by their own codes where int4 tiles give the same numbers, else as
    numbers; `requantise=int4_g128`: as int4 all the same, as with quant=int4_g128.
    """

    source: str = "checkpoint"
    path: str = ""
    repo: str = ""
    revision: str = "main"
    requantise: str = "never"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = expanduser(self.path)
        check_choice("weights.requantise", self.requantise, ("never", "int4_g128"))
        if bool(self.path) == bool(self.repo):
            given = "both" if self.path else "neither"
            raise ValueError(
                "weights=checkpoint takes one of weights.path=FOLDER and weights.repo=OWNER/NAME,"
                f" got {given}"
            )


@dataclass
class RandomWeights(Weights):
    source: str = "random"
    seed: int = 0


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


@dataclass
class Kernel:
    """`variant` for every operator; an operator's own field, where not empty, overrules it.

    On cards whose launches can overlap they do, and some then fetch weights into the L2 cache
    meanwhile: `overlap`, `fetch_ahead`. `separate` operators are made of several plainer ones.
    """

    variant: str = MISSING
    overlap: bool = True
    fetch_ahead: bool = True
    separate: list[str] = field(default_factory=list)
    matmul: str = ""
    int4_matmul: str = ""
    int4_matmul_beside: str = ""
    int4_add_norm: str = ""
    int4_gate_up: str = ""
    int4_restore: str = ""
    table4_matmul: str = ""
    table4_restore: str = ""
    quantise_rows: str = ""
    rms_norm: str = ""
    rms_norm_plain: str = ""
    add_rms_norm: str = ""
    unfold_norm: str = ""
    embed_norm: str = ""
    silu_mul: str = ""
    gated_delta_step: str = ""
    gated_delta_absorb: str = ""
    gated_delta_chunk: str = ""
    qk_rope_store: str = ""
    attention_decode: str = ""
    attention_prefill: str = ""
    kv_restore: str = ""
    kvarn_store: str = ""
    kvarn_pack: str = ""
    kvarn_attention: str = ""
    penalize: str = ""
    sample: str = ""
    accept: str = ""
    dflash_embed: str = ""
    dflash_conv: str = ""
    dflash_conv_add_norm: str = ""
    dflash_attention: str = ""
    dflash_top: str = ""
    dflash_select: str = ""

    def __post_init__(self) -> None:
        built = ("reference", "tile", "triton", "gluon")
        check_choice("kernel.variant", self.variant, ("auto", *built), PLANNED["kernel"])
        for operator, variant in self.overrides().items():
            check_choice(f"kernel.{operator}", variant, built, PLANNED["kernel"])
        for operator in self.separate:
            check_choice("kernel.separate", operator, FUSED)

    def overrides(self) -> dict[str, str]:
        """The operators whose variant is not the common one."""
        common = ("variant", "overlap", "fetch_ahead", "separate")
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in common}
        return {name: variant for name, variant in own.items() if variant}


def check_ngrams(low: int, high: int) -> None:
    if not 1 <= low <= high:
        raise ValueError(f"draft needs 1 <= ngram_min <= ngram_max, got {low} and {high}")


STRATEGIES = ("raw", "mtp", "dflash2", "lookup", "dflash2_lookup", "chain", "auto", "oracle")
NOISE = ("shared", "none")


@dataclass
class Draft:
    strategy: str = MISSING

    def __post_init__(self) -> None:
        check_choice("draft.strategy", self.strategy, STRATEGIES, PLANNED["draft"])
        tokens = getattr(self, "tokens", None)
        if tokens is not None:
            check_range("draft.tokens", tokens, 1, VERIFY_ROWS - 1)

    def parts(self) -> "list[Draft]":
        """The strategies that may run."""
        return [self]


@dataclass
class RawDraft(Draft):
    strategy: str = "raw"


@dataclass
class DraftHead:
    """Which tokens a draft chooses among; control tokens are always kept.

    full: all; first: the first `ids` ones; counted: the `ids` most frequent ones of a file that
    +exp=draft_vocab writes. All where there are fewer.
    """

    kind: str = "full"
    ids: int = 131072
    path: str = ""

    def __post_init__(self) -> None:
        check_choice("draft.head.kind", self.kind, ("full", "first", "counted"))
        self.path = expanduser(self.path)
        if self.ids < 1:
            raise ValueError(f"draft.head.ids must be positive, got {self.ids}")
        if (self.kind == "counted") != bool(self.path):
            raise ValueError(
                f"draft.head.kind={self.kind} takes"
                f" {'draft.head.path=FILE' if self.kind == 'counted' else 'no draft.head.path'}"
            )


@dataclass
class MtpDraft(Draft):
    """Every step drafts `tokens`; with `least`, 2 more than the last one accepted.

    These are `least` at least and `tokens` at most.
    """

    strategy: str = "mtp"
    tokens: int = MISSING
    least: int = 0
    head: DraftHead = field(default_factory=DraftHead)
    noise: str = "shared"  # when sampling: the target's own, or none (the likeliest tokens)
    kv: str = "same"  # format of the head's cache; same: as the target's

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("draft.noise", self.noise, NOISE)
        check_choice("draft.kv", self.kv, ("same", "bf16", "fp8", "int8", "int4"))
        check_range("draft.least", self.least, 0, self.tokens)


@dataclass
class Dflash2Shape:
    """A draft made with weights=random; its other widths, window aside, are the target's own.

    `taps` are layers of a target of 64; a shallower one is tapped at the same fractions.
    """

    layers: int = MISSING
    block: int = MISSING
    heads: int = MISSING
    kv_heads: int = MISSING
    d_head: int = MISSING
    taps: list[int] = MISSING
    window: int = MISSING
    mask_token: int = MISSING
    conv_width: int = MISSING
    conv_group: int = MISSING
    selector_rank: int = MISSING
    selector_top: int = MISSING

    def __post_init__(self) -> None:
        for name in ("layers", "block", "heads", "kv_heads", "d_head", "window", "conv_group"):
            if getattr(self, name) < 1:
                raise ValueError(f"draft.random.{name} must be positive, got {getattr(self, name)}")
        if not self.taps or not all(0 <= tap < DEPTH for tap in self.taps):
            raise ValueError(f"draft.random.taps must lie in 0..{DEPTH - 1}, got {self.taps}")


@dataclass
class Dflash2Draft(Draft):
    """Weights from beside the target's, or from a folder or hub repository of their own."""

    strategy: str = "dflash2"
    tokens: int = MISSING
    window: int = 0  # context tokens the draft attends to; 0: as its checkpoint says
    head: DraftHead = field(default_factory=DraftHead)
    noise: str = "shared"  # when sampling: the target's own, or none (the likeliest tokens)
    path: str = ""
    repo: str = ""
    revision: str = "main"
    random: Dflash2Shape = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("draft.noise", self.noise, NOISE)
        self.path = expanduser(self.path)
        if self.window < 0:
            raise ValueError(f"draft.window must be 0 or more, got {self.window}")
        if self.path and self.repo:
            raise ValueError("draft=dflash2 takes draft.path or draft.repo, got both")


@dataclass
class LookupDraft(Draft):
    """Copies what followed the last ngram_max..ngram_min tokens where they occurred before."""

    strategy: str = "lookup"
    tokens: int = MISSING
    ngram_min: int = MISSING
    ngram_max: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ngrams(self.ngram_min, self.ngram_max)


@dataclass
class Dflash2LookupDraft(Dflash2Draft):
    """`tokens` from the block; after steps that were accepted whole, `tail` more from the text."""

    strategy: str = "dflash2_lookup"
    tail: int = MISSING
    ngram_min: int = MISSING
    ngram_max: int = MISSING
    trust: int = MISSING  # a match this long replaces the block's tokens; above ngram_max: none
    saturated: int = MISSING  # steps in a row; 0: every step is a long one

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ngrams(self.ngram_min, self.ngram_max)
        check_range("draft.tail", self.tail, 1, VERIFY_ROWS - 1 - self.tokens)
        for name in ("trust", "saturated"):
            if getattr(self, name) < 0:
                raise ValueError(f"draft.{name} must be 0 or more, got {getattr(self, name)}")


@dataclass
class ChainDraft(Dflash2LookupDraft):
    """Whole steps from the text, once `after` long ones in a row were accepted whole."""

    strategy: str = "chain"
    after: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.after < 1:
            raise ValueError(f"draft.after must be positive, got {self.after}")


@dataclass
class Pace:
    """What steps cost, in raw ones: by their draft, copied ones by their rows.

    `rival`: which of `choices` is tried beside `other`; empty: none.
    """

    dflash2: float = MISSING
    dflash2_lookup: float = MISSING
    mtp: float = MISSING
    copy: dict[int, float] = field(default_factory=dict)
    rival: str = ""

    def __post_init__(self) -> None:
        for rows in self.copy or [0]:
            check_range("draft.paces.*.copy: rows", rows, 2, VERIFY_ROWS)
        costs = (self.dflash2, self.dflash2_lookup, self.mtp, *self.copy.values())
        if min(costs) <= 0:
            raise ValueError(f"draft.paces.*: a step's cost must be positive, got {min(costs)}")


@dataclass
class AutoDraft(Draft):
    """Two of `choices` by name: `cjk` where that `share` of a prompt is Chinese and the like.

    `adapt`: each step then runs what is worth most by `paces`, that draft or a copied step, which
    looks for n-grams as `lookup` does. Paces are named by the device or its kind, cpu or cuda, with
    the source of the weights behind it or without: the first of h200_random, cuda_random, h200 and
    cuda.
    """

    strategy: str = "auto"
    cjk: str = MISSING
    other: str = MISSING
    share: float = MISSING
    adapt: bool = MISSING
    ngram_min: int = MISSING
    ngram_max: int = MISSING
    paces: dict[str, Pace] = field(default_factory=dict)
    choices: dict[str, Draft] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("draft.share", self.share, 0, 1)
        check_ngrams(self.ngram_min, self.ngram_max)
        for key in ("cjk", "other"):
            check_choice(f"draft.{key}", getattr(self, key), self.choices)
        for device, pace in self.paces.items():
            check_choice(f"draft.paces.{device}.rival", pace.rival, ("", *self.choices))

    def parts(self) -> list[Draft]:
        return [self.choices[self.cjk], self.choices[self.other]]

    def pace(self, device: str, kind: str, source: str) -> Pace:
        """The one for weights of that source on a device; raises ValueError without one."""
        names = (f"{device}_{source}", f"{kind}_{source}", device, kind)
        for name in names:
            if name in self.paces:
                return self.paces[name]
        raise ValueError(
            f"draft.paces has none of {', '.join(names)}; take the step times of +exp=draft_compare"
            " for one, or draft.adapt=false"
        )


@dataclass
class OracleDraft(Draft):
    """A recorded continuation; each token is kept with probability `rate`, else corrupted."""

    strategy: str = "oracle"
    tokens: int = MISSING
    rate: float = MISSING
    source: str = ""  # a file of token ids; empty: the run's own raw output
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("draft.rate", self.rate, 0, 1)


@dataclass
class Jit:
    backend: str = MISSING

    def __post_init__(self) -> None:
        built = ("eager", "inductor", "max_autotune", "cuda_graph", "max_autotune_graph")
        check_choice("jit.backend", self.backend, built, PLANNED["jit"])


@dataclass
class Sampling:
    """temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 leave the distribution whole."""

    temperature: float = MISSING
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0  # once for a token that was written
    frequency_penalty: float = 0.0  # for every time it was
    repetition_penalty: float = 1.0  # for tokens of the prompt too; divides a positive logit
    logit_bias: dict[int, float] = field(default_factory=dict)  # by token id; at most 1024
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            check_range(f"sampling.{name}", getattr(self, name), -2, 2)
        if not 0 < self.repetition_penalty <= 10:
            raise ValueError(
                f"sampling.repetition_penalty must lie in (0, 10], got {self.repetition_penalty:g}"
            )
        for token, value in self.logit_bias.items():
            check_range(f"sampling.logit_bias[{token}]", value, -100, 100)
        check_range("sampling.temperature", self.temperature, 0, 100)
        check_range("sampling.min_p", self.min_p, 0, 1)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p must lie in (0, 1], got {self.top_p:g}")
        if self.top_k < 0:
            raise ValueError(f"sampling.top_k must be 0 or more, got {self.top_k}")


@dataclass
class Prompt:
    text: str = MISSING
    kind: str = "chat"  # chat: a user's turn; plain: continued as it stands

    def __post_init__(self) -> None:
        check_choice("prompts.kind", self.kind, ("chat", "plain"))


@dataclass
class PromptSet:
    """Texts given here, or one text file named by `path`, of kind `path_kind`."""

    name: str = MISSING
    path: str = ""
    path_kind: str = "plain"
    prompts: list[Prompt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = expanduser(self.path)
        check_choice("prompts.path_kind", self.path_kind, ("chat", "plain"))

    def read(self) -> list[Prompt]:
        """The prompts; raises ValueError where there is none."""
        texts = list(self.prompts)
        if self.path:
            with open(self.path, encoding="utf-8") as file:
                texts.append(Prompt(file.read(), self.path_kind))
        if not texts or not all(prompt.text for prompt in texts):
            hint = f"{self.path} is empty" if self.path else "set prompts.path=FILE"
            raise ValueError(f"prompts={self.name} holds no text: {hint}")
        return texts


@dataclass
class Prompts(PromptSet):
    """One set, or several as families."""

    sets: dict[str, PromptSet] = field(default_factory=dict)

    def families(self) -> dict[str, list[Prompt]]:
        """Prompts by family: the sets, or this one under its own name."""
        return {one.name: one.read() for one in self.sets.values() or [self]}


@dataclass
class Device:
    """Where to run; ceilings are known ones, null where only a measurement can tell."""

    name: str = MISSING
    torch: str = MISSING  # auto, cpu or cuda
    card: str = ""  # must occur in the name of the card that is found
    memory_gib: float | None = None
    read_gb_per_s: float | None = None
    nominal_gb_per_s: float | None = None
    power_w: float | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        check_choice("device.torch", self.torch, ("auto", "cpu", "cuda"))

    def resolve(self) -> "torch.device":
        """The torch device; raises ValueError where this machine lacks the one asked for."""
        import torch

        found = torch.cuda.is_available()
        if self.torch == "cpu" or (self.torch == "auto" and not found):
            return torch.device("cpu")
        if not found:
            raise ValueError(
                f"device={self.name} needs a CUDA card; torch {torch.__version__} sees none here;"
                " use device=cpu"
            )
        card = torch.cuda.get_device_name()
        if self.card not in card:
            raise ValueError(f"device={self.name} found a {card}; use device=auto")
        return torch.device("cuda")


@dataclass
class Run:
    """The groups that every command takes."""

    model: Model = MISSING
    weights: Weights = MISSING
    quant: Quant = MISSING
    kv: Kv = MISSING
    prefill: Prefill = MISSING
    kernel: Kernel = MISSING
    draft: Draft = MISSING
    jit: Jit = MISSING
    sampling: Sampling = MISSING
    device: Device = MISSING
    seed: int = 0
    threads: int = 0  # CPU threads; 0: torch's own choice
    progress: str = "auto"  # bars on a terminal, else quiet; or bars, quiet, json (on stderr)
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ValueError(f"threads must be 0 or more, got {self.threads}")
        check_choice("progress", self.progress, MODES)
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be positive, got {self.max_new_tokens}")


@dataclass
class Config(Run):
    """An experiment: `run` names a module of experiments/, `params` are that module's Options."""

    run: str = MISSING
    prompts: Prompts = MISSING
    params: dict[str, Any] = field(default_factory=dict)
    output: str = MISSING  # the folder of this run's files

    def options(self, schema: type[T]) -> T:
        """`params` as the plain dataclass `schema`; an unknown name or a wrong type raises."""
        names = [f.name for f in fields(schema)]  # type: ignore[arg-type]
        for key in self.params:
            if key not in names:
                raise ValueError(unknown(f"unknown key of run={self.run}: params", key, names))
        try:
            merged = OmegaConf.merge(OmegaConf.structured(schema), self.params)
            return OmegaConf.to_object(merged)  # type: ignore[return-value]
        except OmegaConfBaseException as error:
            name = getattr(error, "full_key", None)
            raise ValueError(f"params.{name}: {str(error).splitlines()[0]}") from error


@dataclass
class Generate(Run):
    """Text in, text out."""

    prompt: str = ""
    chat: bool = True  # wrap the prompt in the chat template; false: continue it as it stands
    stop: list[str] = field(default_factory=list)  # strings that end the answer, and are not shown


@dataclass
class Serve(Run):
    """OpenAI's and Anthropic's protocols on one port.

    `sampling` is for answers without a thought, `thinking_sampling` for those that begin with one,
    where a request does not say; `max_new_tokens` as well.
    """

    thinking_sampling: Sampling = MISSING
    host: str = MISSING
    port: int = MISSING  # 0: any free one
    api_key: str = ""  # or the environment variable TR_API_KEY
    hosts: list[str] = field(default_factory=list)  # Host headers beside this machine's names
    origins: list[str] = field(default_factory=list)  # web pages that may ask; "*": all
    name: str = ""  # of the model; empty: after its weights
    aliases: list[str] = field(default_factory=list)
    strict_model: bool = False  # refuse other names than these
    warm: bool | None = None  # run all once before /health says ok; null: on a GPU
    thinking: bool = True  # of OpenAI requests that say nothing
    effort: str = "medium"
    efforts: dict[str, str] = field(default_factory=dict)  # clients' words -> the template's, more
    waiting: int = MISSING  # requests in the queue
    sessions_gib: float = MISSING  # host memory for conversations
    least_room: int = MISSING  # tokens an answer must have room for
    body_mib: float = MISSING
    body_seconds: float = MISSING  # for a body to arrive
    reader_seconds: float = MISSING  # for a client to read what was sent
    request_seconds: float = MISSING  # for a whole request, its wait included
    keep_alive_seconds: float = MISSING
    shutdown_seconds: float = MISSING  # for running requests to end
    log_level: str = "info"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("port", self.port, 0, 65535)
        check_range("waiting", self.waiting, 1, 4096)
        check_choice("log_level", self.log_level, ("debug", "info", "warning", "error"))
        names = ("sessions_gib", "least_room", "body_mib", "body_seconds", "reader_seconds")
        for name in (*names, "request_seconds", "keep_alive_seconds", "shutdown_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name):g}")


CHECKS = (
    "versions",
    "device",
    "memory",
    "checkpoint",
    "operators",
    "exactness",
    "disk",
    "port",
)


@dataclass
class Doctor(Run):
    """A machine and a checkpoint looked at: `checks` (none given: all), told as a table or JSON.

    `host` and `port` are those that a server would take; `max_new_tokens` those of a text of the
    exactness check.
    """

    checks: list[str] = field(default_factory=list)
    report: str = "table"
    host: str = MISSING
    port: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.checks:
            check_choice("checks", name, CHECKS)
        check_choice("report", self.report, ("table", "json"))
        check_range("port", self.port, 0, 65535)


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
