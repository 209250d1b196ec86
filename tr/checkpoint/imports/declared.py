"""What config.json says of each matrix: `quantization_config` by any method, ignored names.

The tensors decide what a matrix is; the declaration fills in what they leave open (which zero point
convention, what 4-bit words are) and must not contradict them.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernels.table4_matmul.layout import APART, FIRST, GROUP, LEVELS, STEP, ZERO, ZEROS
from tr.checkpoint.metadata import read_json, text_config

PREFIXES = ("", "model.", "model.language_model.", "language_model.", "language_model.model.")
FUSED = {  # what engines stack, by the part that files name
    "in_proj_qkv": "in_proj_qkvz",
    "in_proj_z": "in_proj_qkvz",
    "in_proj_b": "in_proj_ba",
    "in_proj_a": "in_proj_ba",
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


#: what a table's codes and bytes mean; see kernels/table4_matmul/layout.py
TABLE4: Mapping[str, Any] = {
    "group_size": GROUP,
    "levels": list(LEVELS),
    "scale": {"first_bits": FIRST, "step": STEP},
    "zero": {"first": ZERO, "apart": APART, "places": ZEROS},
}


@dataclass(frozen=True)
class Declared:
    """None: not said. `zero`: GPTQ's convention, minus_one or plain; "": not said."""

    method: str = ""
    bits: int | None = None
    group: int | None = None  # -1: all inputs
    symmetric: bool | None = None
    reordered: bool = False  # by activation, so that groups are listed input by input
    zero: str = ""
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scheme:
    """A checkpoint's declaration. `rules` in order: the first whose pattern takes a matrix."""

    method: str = ""  # "": plain weights
    common: Declared = Declared()
    rules: tuple[tuple[str, Declared | None], ...] = ()  # None: declared plain
    targets: tuple[str, ...] = ("Linear",)
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def of(self, module: str) -> Declared:
        """What is said about the matrix, for one that is stored quantised."""
        for pattern, declared in self.rules:
            if declared is not None and names(pattern, module):
                return declared
        return self.common

    def expects(self, module: str) -> bool:
        """Whether the matrix is declared quantised."""
        if any(names(pattern, module) for pattern in self.ignored):
            return False
        for pattern, declared in self.rules:
            if names(pattern, module):
                return declared is not None
        return any(names(target, module) for target in self.targets)


PLAIN = Scheme()


def names(pattern: str, module: str) -> bool:
    """Whether a pattern of a configuration names the matrix `module`, by any of its spellings.

    re:REGEX, a glob, the class Linear, a whole name, or a part of one between dots.
    """
    if pattern == "Linear":
        return not module.endswith("embed_tokens")
    start, _, last = module.rpartition(".")
    short = [module]
    if last in FUSED:
        short.append(f"{start}.{FUSED[last]}")
    spelled = [prefix + name for name in short for prefix in PREFIXES]
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in spelled)
    pattern = pattern.rstrip(".").removesuffix(".weight")
    if any(c in pattern for c in "*?["):
        return any(fnmatch.fnmatchcase(name, pattern) for name in spelled)
    return any(f".{pattern}." in f".{name}." for name in spelled)


def read_scheme(folder: Path, config: Mapping[str, Any]) -> Scheme:
    """The declaration of a folder; raises ValueError for a method that is not read.

    Of a folder with tables and int4 codes, as `tr.quant.folder` writes it, both: config.json's, and
    a rule for every matrix that tokenrush.json lists.
    """
    own = PLAIN
    for part in (config, text_config(config)):
        if part.get("quantization_config"):
            own = parse(part["quantization_config"], folder / "config.json")
            break
    if own.method not in ("", "table4"):
        return own
    if own is PLAIN and (folder / "hf_quant_config.json").is_file():
        path = folder / "hf_quant_config.json"
        return parse({"quant_method": "modelopt", **read_json(path).get("quantization", {})}, path)
    if not (folder / "tokenrush.json").is_file():
        return own
    path = folder / "tokenrush.json"
    codes = parse({"quant_method": "tokenrush", **read_json(path)}, path)
    if own is PLAIN:
        return codes
    return replace(own, rules=tuple((name, codes.common) for name in codes.targets))


def parse(config: Mapping[str, Any], path: Path) -> Scheme:
    method = str(config.get("quant_method", config.get("quant_algo", "")) or "unknown").lower()
    short = method.removeprefix("intel/").replace("autoround", "auto-round")
    reader = METHODS.get("modelopt" if short.startswith("modelopt") else short)
    if reader is None:
        raise ValueError(
            f"{path}: quant_method {method} is not read; known: {', '.join(sorted(METHODS))}; take"
            " another release of the model"
        )
    try:
        return reader(config)
    except (TypeError, AttributeError, re.error) as error:
        raise ValueError(f"{path}: the quantization of {method} is malformed ({error})") from error


def _group(value: Any) -> int | None:
    return None if value is None else int(value)


def _compressed_tensors(config: Mapping[str, Any]) -> Scheme:
    if config.get("transform_config"):
        raise ValueError(
            "config.json: quantization_config.transform_config rotates activations at run time,"
            " which is not built; take a release without transforms"
        )
    rules: list[tuple[str, Declared | None]] = []
    for group in config.get("config_groups", {}).values():
        weights = group.get("weights") or {}
        block = weights.get("block_structure")
        if isinstance(block, str):
            block = [int(n) for n in re.findall(r"\d+", block)]
        declared = Declared(
            method="compressed-tensors",
            bits=weights.get("num_bits"),
            group=-1 if weights.get("strategy") == "channel" else _group(weights.get("group_size")),
            symmetric=weights.get("symmetric"),
            reordered=weights.get("actorder") in ("group", "dynamic", True),
            block=tuple(block) if block else None,
        )
        rules += [(target, declared) for target in group.get("targets", [])]
    rules.sort(key=lambda rule: rule[0] == "Linear")  # a name beats a class
    ignored = tuple(config.get("ignore") or ())
    return Scheme("compressed-tensors", Declared("compressed-tensors"), tuple(rules), (), ignored)


def _gptq(config: Mapping[str, Any]) -> Scheme:
    layout = config.get("checkpoint_format") or config.get("format")
    zero = {None: "", "gptq": "minus_one", "gptq_v2": "plain"}.get(layout)
    if zero is None:
        raise ValueError(
            f"config.json: checkpoint_format {layout} is not read; known: gptq, gptq_v2"
        )
    common = Declared(
        method="gptq",
        bits=config.get("bits"),
        group=_group(config.get("group_size")),
        symmetric=config.get("sym"),
        reordered=bool(config.get("desc_act")),
        zero=zero or "minus_one",
    )
    notes = ()
    if not zero:
        notes = (
            "config.json names no checkpoint_format: zero points are read as GPTQ's first format"
            " has them, less one",
        )
    rules: list[tuple[str, Declared | None]] = []
    for pattern, own in (config.get("dynamic") or {}).items():
        regex = "re:" + pattern.removeprefix("+:").removeprefix("-:")
        rules.append((regex, None if pattern.startswith("-:") else _override(common, own or {})))
    if not config.get("lm_head"):
        rules.append(("lm_head", None))
    return Scheme("gptq", common, tuple(rules), notes=notes)


def _override(common: Declared, own: Mapping[str, Any]) -> Declared | None:
    """A matrix's own settings over the common ones; None: it stays in 16 bits."""
    bits = own.get("bits", common.bits)
    if bits is not None and bits >= 16:
        return None
    return replace(
        common,
        bits=bits,
        group=_group(own.get("group_size", common.group)),
        symmetric=own.get("sym", common.symmetric),
        reordered=bool(own.get("desc_act", common.reordered)),
    )


def _awq(config: Mapping[str, Any]) -> Scheme:
    version = str(config.get("version", "gemm")).lower()
    if version != "gemm":
        raise ValueError(
            f"config.json: AWQ version {version} is not read; known: gemm; take that release"
        )
    common = Declared(
        method="awq",
        bits=config.get("bits", config.get("w_bit")),
        group=_group(config.get("group_size", config.get("q_group_size"))),
    )
    ignored = tuple(config.get("modules_to_not_convert") or ()) + ("lm_head",)
    return Scheme("awq", common, ignored=ignored)


def _autoround(config: Mapping[str, Any]) -> Scheme:
    packing = str(config.get("packing_format", "auto_round:auto_gptq"))
    layout = packing.partition(":")[2] or "gptqmodel"
    if layout == "auto_awq":
        common = Declared("awq", config.get("bits"), _group(config.get("group_size")))
    elif layout in ("auto_gptq", "gptqmodel"):
        zero = "minus_one" if layout == "auto_gptq" else "plain"
        common = Declared(
            "gptq", config.get("bits"), _group(config.get("group_size")), config.get("sym"), False
        )
        common = replace(common, zero=zero)
    elif layout in ("llm_compressor", "nvfp4", "fp8"):
        common = Declared("compressed-tensors", config.get("bits"))
    else:
        raise ValueError(
            f"config.json: packing_format {packing} is not read; known: auto_round,"
            " auto_round:gptqmodel, auto_round:auto_gptq, auto_round:auto_awq"
        )
    rules: list[tuple[str, Declared | None]] = [
        (name, _override(common, own)) for name, own in (config.get("extra_config") or {}).items()
    ]
    rules.append(("lm_head", None))
    return Scheme("auto-round", common, tuple(rules))


def _fp8(config: Mapping[str, Any]) -> Scheme:
    block = config.get("weight_block_size")
    ignored = config.get("modules_to_not_convert") or config.get("ignored_layers") or ()
    common = Declared("fp8", 8, block=tuple(block) if block else None)
    return Scheme("fp8", common, ignored=(*ignored, "lm_head"))


def _modelopt(config: Mapping[str, Any]) -> Scheme:
    if "quantization" in config:
        config = {**config, **config["quantization"]}
    algorithm = str(config.get("quant_algo", "NVFP4")).upper()
    if algorithm not in ("NVFP4", "FP8", "MIXED_PRECISION"):
        raise ValueError(
            f"hf_quant_config.json: quant_algo {algorithm} is not read; known: FP8, NVFP4"
        )
    common = Declared("modelopt", group=_group(config.get("group_size")))
    ignored = config.get("exclude_modules") or config.get("ignore") or ()
    return Scheme("modelopt", common, ignored=tuple(ignored))


def _tokenrush(config: Mapping[str, Any]) -> Scheme:
    if config.get("format", "int4") != "int4":
        raise ValueError(f"tokenrush.json: format {config['format']!r} is not read; known: int4")
    common = Declared("tokenrush", 4, _group(config.get("group")))
    listed = config.get("quantized")
    return Scheme("tokenrush", common, targets=_modules(listed) if listed else ("Linear",))


def _modules(listed: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.removesuffix(".weight") for name in listed)


def _table4(config: Mapping[str, Any]) -> Scheme:
    for key, ours in TABLE4.items():
        if config.get(key) != ours:
            raise ValueError(
                f"config.json: quantization_config.{key} of table4 is {config.get(key)}, and only"
                f" {ours} is read; take the release that this version made"
            )
    return Scheme("table4", Declared("table4", 4, GROUP), targets=_modules(config.get("modules")))


METHODS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _autoround,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "tokenrush": _tokenrush,
    "table4": _table4,
}
