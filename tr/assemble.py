"""From a config to things that decode: the one place where groups become objects."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from kernels.matmul.tile import resident_dtype
from kernels.registry import Ops, select
from tr.checkpoint.hub import resolve
from tr.checkpoint.load import load_into, load_target, skeleton
from tr.checkpoint.metadata import read_json
from tr.checkpoint.names import dflash2_table
from tr.checkpoint.tokenizer import Tokenizer, load_tokenizer
from tr.config import (
    CheckpointWeights,
    Dflash2Draft,
    LookupDraft,
    MtpDraft,
    RandomWeights,
    Run,
)
from tr.decode.step import Model
from tr.drafts import dflash2_net
from tr.drafts.base import Draft
from tr.drafts.dflash2 import Dflash2
from tr.drafts.lookup import Lookup
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model import mtp, text
from tr.model.sampling import Sampling, sampling
from tr.nn.formats.dense import Dense
from tr.nn.rope import rope
from tr.quant.rtn import quantise_all

T = TypeVar("T")
EMBEDDED = Path(__file__).parent / "assets" / "tiny"


@dataclass(frozen=True, eq=False)
class Assembly:
    """A target and what else its checkpoint brought; `warnings` go to the record."""

    model: Model
    mtp: mtp.Params | None
    eos: tuple[int, ...]
    ops: Ops
    warnings: tuple[str, ...] = ()
    folder: Path | None = None  # None: random weights
    text: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        if self.text is None:
            raise ValueError("weights=random has no tokenizer; use weights=embedded or checkpoint")
        return self.text

    def draft(self, config: Run) -> Draft:
        """The strategy of `config.draft`; raises ValueError where its weights are missing."""
        chosen, target, ids = config.draft, self.model.params, self.model.ids
        if isinstance(chosen, MtpDraft):
            if self.mtp is None:
                raise ValueError(
                    f"draft=mtp: {self.folder} has no mtp.* tensors; use draft=dflash2"
                )
            return Mtp(self.mtp, target, self.ops, chosen.tokens, ids)
        if isinstance(chosen, LookupDraft):
            return Lookup(chosen.tokens, chosen.ngram_min, chosen.ngram_max)
        if isinstance(chosen, Dflash2Draft):
            params = load_dflash2(self._draft_folder(chosen), target)
            window = chosen.window or params.config.window
            return Dflash2(params, target, chosen.tokens, ids, window)
        if chosen.strategy == "raw":
            return Raw()
        raise ValueError(f"draft={chosen.strategy} needs a recorded text; run it in an experiment")

    def _draft_folder(self, chosen: Dflash2Draft) -> Path:
        if chosen.path or chosen.repo:
            return resolve(chosen.path or None, chosen.repo or None, chosen.revision)
        if self.folder is None:
            raise ValueError("draft=dflash2: random weights come without one; give draft.path")
        folder = self.folder / "draft"
        if not folder.is_dir():
            raise ValueError(
                f"draft=dflash2: {self.folder} has no draft/ folder; give draft.path or draft.repo"
            )
        return folder


def assemble(config: Run) -> Assembly:
    """Make the target that `config` names on its device, ready for the operators it picks."""
    source, device = config.weights, config.device.resolve()
    variant, overrides = config.kernel.variant, config.kernel.overrides()
    ops = select(variant, overrides, device)
    if source.source == "random":
        seed = source.seed if isinstance(source, RandomWeights) else 0
        generator = torch.Generator(device).manual_seed(seed)
        shape = config.model.spec()
        params = text.init(shape, generator, torch.bfloat16)
        head = mtp.init(shape, generator, torch.bfloat16) if shape.mtp_layers else None
        params, head = hold(params, config, ops), hold(head, config, ops)
        model = Model.build(params, ops, shape.vocab, config.jit.backend)
        return Assembly(model, head, (), ops)
    if isinstance(source, CheckpointWeights):
        folder = resolve(source.path or None, source.repo or None, source.revision)
    else:
        folder = EMBEDDED
    loaded = load_target(folder, device)
    tokenizer = load_tokenizer(folder)
    if tokenizer.count > loaded.config.vocab:
        raise ValueError(
            f"{folder}: the tokenizer has {tokenizer.count} ids, the model {loaded.config.vocab}"
            " rows; take both from one checkpoint"
        )
    params, head = hold(loaded.params, config, ops), hold(loaded.mtp, config, ops)
    model = Model.build(params, ops, tokenizer.count, config.jit.backend)
    return Assembly(model, head, loaded.eos, ops, loaded.warnings, folder, tokenizer)


def hold(params: T, config: Run, ops: Ops) -> T:
    """`params` with its matrices in the format that `config.quant` asks for."""
    if config.quant.format == "int4_g128":
        params, _ = quantise_all(params)
    cpu = config.device.resolve().type == "cpu"
    return resident(params) if cpu and ops.matmul is select("tile").matmul else params


def resident(params: T) -> T:
    """Dense matrices in the dtype that the CPU multiplies natively; the tile takes either."""

    def convert(x: Any) -> Any:
        if not isinstance(x, Dense):
            return x
        return dataclasses.replace(x, weight=x.weight.to(resident_dtype(x.weight.dtype)))

    return pytree.tree_map(convert, params, is_leaf=lambda x: isinstance(x, Dense))


def load_dflash2(folder: Path, target: text.Params) -> dflash2_net.Params:
    """A DFlash 2 draft for `target`, in the target's dtype and on its device."""
    shape = dflash2_net.Config.from_hf(read_json(folder / "config.json"))
    vocab, d_model = target.embed.shape
    if (shape.vocab, shape.d_model) != (vocab, d_model):
        raise ValueError(
            f"{folder}: the draft is for {shape.vocab} x {shape.d_model} embeddings, the target has"
            f" {vocab} x {d_model}; take the draft that was trained for this target"
        )
    if max(shape.taps) >= len(target.layers):
        raise ValueError(
            f"{folder}: the draft reads layer {max(shape.taps)}, the target has"
            f" {len(target.layers)}; take the draft that was trained for this target"
        )
    dtype, device = target.norm.dtype, target.norm.device
    empty = skeleton(lambda generator: dflash2_net.init(shape, generator, dtype))
    table = rope(shape.max_positions, shape.d_head, shape.rope_theta, dtype, str(device))
    empty = dataclasses.replace(empty, rope=table)
    return load_into(folder, empty, dflash2_table(shape.layers), device)


def sampling_of(config: Run) -> Sampling:
    s = config.sampling
    return sampling(s.temperature, s.top_k, s.top_p, s.min_p, s.seed, config.device.resolve())
