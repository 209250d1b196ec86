"""Which file tensors a params tensor is made of, by key path: `layers[0].mlp.gate_up.weight`.

File tensors go by short names here (`layers.0.mlp.gate_proj.weight`); a table's `canonical` strips
the prefixes that releases, text-only saves and fine-tunes put in front, and `spell` writes ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tr.model.config import FULL, ModelConfig


@dataclass(frozen=True)
class Source:
    """File tensors stacked by rows; `unit_axis`: an axis of length 1 that only the file has."""

    names: tuple[str, ...]
    unit_axis: int | None = None


@dataclass(frozen=True)
class Table:
    """One file layout. `skip`: prefixes of tensors left unread, with the reason.

    `copies`: tensors that may be present again and must equal the params tensor named.
    """

    sources: Mapping[str, Source]
    canonical: Callable[[str], str]
    spell: Callable[[str], str]
    skip: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)


def target_table(config: ModelConfig, mtp: bool) -> Table:
    """The model under `text.` and, where `mtp`, its multi-token-prediction head under `mtp.`."""
    if mtp and config.mtp_layers != 1:
        raise ValueError(f"mtp_num_hidden_layers: expected 0 or 1, got {config.mtp_layers}")
    sources = {
        "text.embed": Source(("embed_tokens.weight",)),
        "text.norm": Source(("norm.weight",)),
    }
    if not config.tie_embeddings:
        sources["text.lm_head.weight"] = Source(("lm_head.weight",))
    for i, kind in enumerate(config.layer_types):
        sources |= _layer(f"text.layers[{i}]", f"layers.{i}", kind)
    skip = {"visual.": "vision tower", "mtp.draft_lm_head.": "a shortened head for drafts"}
    if mtp:
        sources |= {
            "mtp.norm_embedding": Source(("mtp.pre_fc_norm_embedding.weight",)),
            "mtp.norm_hidden": Source(("mtp.pre_fc_norm_hidden.weight",)),
            "mtp.fc.weight": Source(("mtp.fc.weight",)),
            "mtp.norm": Source(("mtp.norm.weight",)),
        }
        sources |= _layer("mtp.layer", "mtp.layers.0", FULL)
    else:
        skip["mtp."] = "multi-token-prediction head"
    copies = {"lm_head.weight": "text.embed"} if config.tie_embeddings else {}
    return Table(sources, target_canonical, _target_spell, skip, copies)


def dflash2_table(layers: int) -> Table:
    """A DFlash 2 block draft; embedding and output head are the target's and not in its files."""
    selector = "candidate_selector"
    sources = {
        "fc.weight": Source(("fc.weight",)),
        "hidden_norm": Source(("hidden_norm.weight",)),
        "norm": Source(("norm.weight",)),
        "selector.projection.weight": Source((f"{selector}.hidden_projection.weight",)),
        "selector.predecessor": Source((f"{selector}.predecessor_codebook",)),
        "selector.successor": Source((f"{selector}.successor_codebook",)),
    }
    for i in range(layers):
        to, at = f"layers[{i}]", f"layers.{i}"
        sources |= (
            _norms(to, at) | _attention(to, f"{at}.self_attn") | _mlp(f"{to}.mlp", f"{at}.mlp")
        )
        for conv in ("attention_conv", "mlp_conv"):
            sources[f"{to}.{conv}.base"] = Source((f"{at}.{conv}.base_kernel",))
            projection = Source((f"{at}.{conv}.kernel_projection.weight",))
            sources[f"{to}.{conv}.projection.weight"] = projection
    return Table(sources, _dflash2_canonical, str)


def _layer(to: str, at: str, kind: str) -> dict[str, Source]:
    if kind == FULL:
        mixer = _attention(f"{to}.mixer", f"{at}.self_attn")
    else:
        mixer = _delta(f"{to}.mixer", f"{at}.linear_attn")
    return _norms(to, at) | mixer | _mlp(f"{to}.mlp", f"{at}.mlp")


def _norms(to: str, at: str) -> dict[str, Source]:
    return {
        f"{to}.input_norm": Source((f"{at}.input_layernorm.weight",)),
        f"{to}.post_norm": Source((f"{at}.post_attention_layernorm.weight",)),
    }


def _attention(to: str, at: str) -> dict[str, Source]:
    return {
        f"{to}.qkv.weight": _stack(at, "q_proj", "k_proj", "v_proj"),
        f"{to}.q_norm": Source((f"{at}.q_norm.weight",)),
        f"{to}.k_norm": Source((f"{at}.k_norm.weight",)),
        f"{to}.out.weight": _stack(at, "o_proj"),
    }


def _delta(to: str, at: str) -> dict[str, Source]:
    return {
        f"{to}.in_qkvz.weight": _stack(at, "in_proj_qkv", "in_proj_z"),
        f"{to}.in_ba.weight": _stack(at, "in_proj_b", "in_proj_a"),
        f"{to}.conv": Source((f"{at}.conv1d.weight",), unit_axis=1),
        f"{to}.a_log": Source((f"{at}.A_log",)),
        f"{to}.dt_bias": Source((f"{at}.dt_bias",)),
        f"{to}.norm": Source((f"{at}.norm.weight",)),
        f"{to}.out.weight": _stack(at, "out_proj"),
    }


def _mlp(to: str, at: str) -> dict[str, Source]:
    return {
        f"{to}.gate_up.weight": _stack(at, "gate_proj", "up_proj"),
        f"{to}.down.weight": _stack(at, "down_proj"),
    }


def _stack(at: str, *parts: str) -> Source:
    return Source(tuple(f"{at}.{part}.weight" for part in parts))


def target_canonical(name: str) -> str:
    for prefix in ("language_model.", "model.", "language_model."):
        name = name.removeprefix(prefix)
    return name


def _target_spell(name: str) -> str:
    return name if name.startswith(("lm_head.", "mtp.")) else f"model.{name}"


def _dflash2_canonical(name: str) -> str:
    return name.removesuffix(".weight") if name.endswith("_codebook.weight") else name
