"""From a config to things that decode: the one place where groups become objects."""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from kernels.define import Target
from kernels.int4_matmul.layout import GROUP
from kernels.matmul.tile import resident_dtype
from kernels.registry import Ops, select
from tr.budget import check
from tr.checkpoint import survey
from tr.checkpoint.hub import resolve
from tr.checkpoint.imports.declared import read_scheme
from tr.checkpoint.imports.gguf import is_gguf
from tr.checkpoint.imports.report import Held, sentences
from tr.checkpoint.load import (
    Arrive,
    Found,
    Loading,
    load_into,
    load_target,
    open_into,
    open_target,
    read_shape,
    skeleton,
)
from tr.checkpoint.metadata import read_json, stored_dtype
from tr.checkpoint.names import Table, dflash2_table
from tr.checkpoint.survey import Size
from tr.checkpoint.tokenizer import Tokenizer, load_tokenizer
from tr.config import (
    DEPTH,
    AutoDraft,
    ChainDraft,
    CheckpointWeights,
    Dflash2Draft,
    Dflash2LookupDraft,
    Dflash2Shape,
    DraftHead,
    LookupDraft,
    MtpDraft,
    Quant,
    RandomWeights,
    Run,
    Weights,
)
from tr.config import Draft as DraftChoice
from tr.decode.step import Model
from tr.drafts import dflash2_net
from tr.drafts.adaptive import Adaptive, Costs
from tr.drafts.auto import Auto
from tr.drafts.base import Draft, Stateless
from tr.drafts.chain import Chain
from tr.drafts.dflash2 import Dflash2
from tr.drafts.dflash2_lookup import Dflash2Lookup
from tr.drafts.dflash2_step import Fused, fuse
from tr.drafts.head import Head, read_listing, sliced, whole
from tr.drafts.lookup import Lookup
from tr.drafts.mtp import Mtp
from tr.drafts.raw import Raw
from tr.model import mtp, text
from tr.model.config import ModelConfig
from tr.model.sampling import Sampling, sampling
from tr.nn import attention
from tr.nn.formats.dense import Dense, dense
from tr.nn.formats.int4 import Int4
from tr.nn.formats.many import Many
from tr.nn.formats.matrix import Make, Matrix
from tr.nn.formats.table4 import Table4
from tr.nn.rope import rope
from tr.operators import operators
from tr.quant import rtn, table
from tr.roofline import plan
from tr.tree import tensors

T = TypeVar("T")
INT4, TABLE4 = Quant(format="int4_g128"), Quant(format="table4")
AT_LOAD = {"int4_g128": rtn, "table4": table}  # what makes codes by weights alone
EMBEDDED = Path(__file__).parent / "assets" / "tiny"


@dataclass(frozen=True, eq=False)
class Assembly:
    """A target and what else its checkpoint brought; `warnings` go to the record.

    `loaded`: those of the target; `drafted`: those of drafts, which `draft` adds.
    """

    model: Model
    mtp: mtp.Params | None
    eos: tuple[int, ...]
    ops: Ops
    shape: ModelConfig
    loaded: tuple[str, ...] = ()
    folder: Path | None = None  # None: random weights
    text: Tokenizer | None = None
    drafted: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.loaded + tuple(dict.fromkeys(self.drafted))

    @property
    def tokenizer(self) -> Tokenizer:
        if self.text is None:
            raise ValueError("weights=random has no tokenizer; use weights=embedded or checkpoint")
        return self.text

    def moved(self, kv: str, context: int, rows: int = 1) -> float:
        """Bytes that a step of `rows` rows must move, its large matrices as they are held."""
        held: Counter[str] = Counter()
        params = self.model.params
        whole = dataclasses.replace(params, lm_head=params.head)
        for key, tensor in tensors(whole).items():
            matrix = key.rpartition(".")[0]  # what follows is a part of its format
            if name := survey.item(f"text.{matrix}", self.shape):
                held[name] += tensor.nbytes
        items = plan(self.shape, kv=kv, context=context, rows=rows).items
        return sum(held.get(item.name, item.moved) for item in items)

    def draft(self, config: Run) -> Draft:
        """The strategy of `config.draft`; raises ValueError where its weights are missing."""
        chosen, target = config.draft, self.model.params
        if isinstance(chosen, MtpDraft):
            if self.mtp is None:
                raise ValueError(
                    f"draft=mtp: {self.folder} has no mtp.* tensors; use draft=dflash2"
                )
            head, noise = self._head(chosen.head), chosen.noise == "shared"
            own = self.mtp if chosen.kv == "same" else cached(self.mtp, chosen.kv)
            return Mtp(own, target, self.ops, chosen.tokens, head, chosen.least, noise=noise)
        if isinstance(chosen, LookupDraft):
            return Lookup(chosen.tokens, chosen.ngram_min, chosen.ngram_max)
        if isinstance(chosen, Dflash2Draft):
            params = self._dflash2(chosen, config)
            window = chosen.window or params.config.window
            head, fused = self._head(chosen.head), self._fused(params)
            noise = chosen.noise == "shared"
            block = Dflash2(params, target, chosen.tokens, head, window, fused, noise)
            if not isinstance(chosen, Dflash2LookupDraft):
                return block
            c = chosen
            own = block, c.tail, c.ngram_min, c.ngram_max, c.trust, c.saturated
            return Chain(*own, after=c.after) if isinstance(c, ChainDraft) else Dflash2Lookup(*own)
        if isinstance(chosen, AutoDraft):
            decode = partial(self.tokenizer.decode, special=False)  # a template is no content
            cjk, other = (self.draft(dataclasses.replace(config, draft=p)) for p in chosen.parts())
            if chosen.adapt:
                cjk, other = self._adaptive(chosen, config, cjk, other)
            return Auto(cjk, other, chosen.share, decode)
        if chosen.strategy == "raw":
            return Raw()
        raise ValueError(f"draft={chosen.strategy} needs a recorded text; run it in an experiment")

    def _adaptive(
        self, chosen: AutoDraft, config: Run, cjk: Draft, other: Draft
    ) -> tuple[Draft, Draft]:
        """Both as they run step by step; what keeps no state of a text stays as it is."""
        kind = self.model.params.norm.device.type
        pace = chosen.pace(config.device.name, kind, config.weights.source)
        costs = Costs(pace.dflash2, pace.dflash2_lookup, pace.mtp, tuple(pace.copy.items()))
        rival = None
        if pace.rival not in ("", chosen.other):
            rival = self.draft(dataclasses.replace(config, draft=chosen.choices[pace.rival]))
        own = costs, kind == "cuda", chosen.ngram_min, chosen.ngram_max

        def adapt(draft: Draft, rival: Draft | None) -> Draft:
            return draft if isinstance(draft, Stateless) else Adaptive(draft, rival, *own)

        return adapt(cjk, None), adapt(other, None if isinstance(rival, Stateless) else rival)

    def _head(self, chosen: DraftHead) -> Head:
        """The rows of the target's output matrix that a draft reads."""
        matrix, count = self.model.params.head, self.model.ids
        if chosen.kind == "full":
            return whole(matrix, count)
        ids = range(count) if chosen.kind == "first" else read_listing(Path(chosen.path), count)
        kept = () if self.text is None else self.text.control.values()
        return sliced(matrix, count, [*ids[: chosen.ids], *kept])

    def _fused(self, params: dflash2_net.Params) -> Fused | None:
        """How a block runs: through operators on a GPU, elsewhere as in training."""
        if params.norm.device.type != "cuda" or params.config.d_model % GROUP:
            return None
        return fuse(params, self.ops)

    def _dflash2(self, chosen: Dflash2Draft, config: Run) -> dflash2_net.Params:
        folder, norm = _draft_folder(chosen, self.folder), self.model.params.norm
        if folder is None:
            generator = torch.Generator(norm.device).manual_seed(_seed(config.weights) + 1)
            shape = random_dflash2(chosen.random, self.shape)
            made = dflash2_net.init(shape, generator, norm.dtype, _make(config))
            return AT_LOAD[config.quant.format].quantise_all(made)[0] if _packed(config) else made
        if not folder.is_dir():
            raise ValueError(
                f"draft=dflash2: {self.folder} has no draft/ folder; give draft.path or draft.repo"
            )
        arrive = AT_LOAD[config.quant.format].arrive if _packed(config) else None
        requantise = rtn.arrive if requantises(config) else None
        made, report = import_dflash2(folder, self.model.params, arrive, requantise)
        self.drafted.extend(f"draft: {said}" for said in sentences(report))
        return made


@dataclass(frozen=True, eq=False)
class Outline:
    """What a run's weights will be, by headers alone; `config` has the quant they are held in."""

    config: Run
    folder: Path | None  # None: random weights
    shape: ModelConfig
    draft: dflash2_net.Config | None  # the block draft that comes with the target
    sizes: dict[str, Size]  # of a quantised checkpoint's large matrices

    def known(self, element: float) -> dict[str, float]:
        """Bytes of what `config` alone would not tell, with `element` bytes a number."""
        return {name: size.nbytes(element) for name, size in self.sizes.items()}


def outline(config: Run) -> Outline:
    """Raises as `load_target` does before it reads a tensor."""
    folder = _folder(config.weights)
    shape = config.model.spec() if folder is None else read_shape(folder)
    sizes = _sizes(config, folder)
    as_held = config
    for field_name, quant in (("tiles", INT4), ("tables", TABLE4)):
        if any(getattr(size, field_name) for size in sizes.values()):
            as_held = dataclasses.replace(config, quant=quant)
    return Outline(as_held, folder, shape, _draft_shape(config.draft, shape, folder), sizes)


def widens(ops: Ops, device: torch.device) -> bool:
    """Whether dense matrices are held as the CPU multiplies them natively."""
    return device.type == "cpu" and ops.matmul is select("tile").matmul


def element_bytes(wide: bool) -> int:
    """Bytes of an unquantised matrix's number as it is held."""
    return resident_dtype(torch.bfloat16).itemsize if wide else 2


def assemble(config: Run, capacity: int | None = None) -> Assembly:
    """Make the target that `config` names on its device, ready for the operators it picks.

    Refused before anything is loaded: what an operator or the card cannot do, and what does not fit
    with caches for `capacity` tokens (default: kv.capacity_tokens).
    """
    source, device = config.weights, config.device.resolve()
    coming = outline(config)
    folder, shape = coming.folder, coming.shape
    tokens = min(capacity or config.kv.capacity_tokens, shape.max_positions)
    ops, warnings = operators(coming.config, shape, tokens, Target.of(device))
    chunk = config.prefill.tokens(device)
    wide = widens(ops, device)
    element = element_bytes(wide)
    check(coming.config, shape, tokens, coming.draft, element, coming.known(element))
    if folder is None:
        generator = torch.Generator(device).manual_seed(_seed(source))
        make = _make(config)
        params = text.init(shape, generator, torch.bfloat16, make)
        head = mtp.init(shape, generator, torch.bfloat16, make) if shape.mtp_layers else None
        params, head = hold(params, config, wide), hold(head, config, wide)
        model = Model.build(params, ops, shape.vocab, config.jit.backend, chunk)
        return Assembly(model, head, (), ops, shape, warnings)

    def arrive(name: str, x: Dense) -> Matrix:
        made = AT_LOAD[config.quant.format].arrive(name, x) if _packed(config) else x
        return resident(made) if wide else made

    requantise = rtn.arrive if requantises(config) else None
    loaded = load_target(folder, device, _dtype(folder), arrive=arrive, requantise=requantise)
    tokenizer = load_tokenizer(folder)
    if tokenizer.count > shape.vocab:
        raise ValueError(
            f"{folder}: the tokenizer has {tokenizer.count} ids, the model {shape.vocab}"
            " rows; take both from one checkpoint"
        )
    params, head = hold(loaded.params, config, wide), hold(loaded.mtp, config, wide)
    model = Model.build(params, ops, tokenizer.count, config.jit.backend, chunk)
    return Assembly(
        model, head, loaded.eos, ops, shape, loaded.warnings + warnings, folder, tokenizer
    )


def _folder(source: Weights) -> Path | None:
    """Where the weights are; None: random ones."""
    if isinstance(source, CheckpointWeights):
        return resolve(source.path or None, source.repo or None, source.revision)
    return None if source.source == "random" else EMBEDDED


def _packed(config: Run) -> bool:
    packed = config.quant.format in AT_LOAD
    for key, at_load in (("method", "rtn"), ("zero_point", "free")):
        if packed and getattr(config.quant, key) != at_load:
            raise ValueError(
                f"quant.{key}={getattr(config.quant, key)} makes a checkpoint: run +exp=quantize"
                " with it, then weights=checkpoint weights.path=FOLDER"
            )
    return packed


def requantises(config: Run) -> bool:
    """Whether what a checkpoint stores quantised becomes int4 whatever it takes."""
    source = config.weights
    asked = isinstance(source, CheckpointWeights) and source.requantise == "int4_g128"
    return asked or (_packed(config) and config.quant.format == "int4_g128")


def _dtype(folder: Path) -> torch.dtype | None:
    """The dtype to load in: a checkpoint's own, but no operator takes float16."""
    own = stored_dtype(read_json(folder / "config.json"))
    return torch.bfloat16 if own == torch.float16 else None


def _sizes(config: Run, folder: Path | None) -> dict[str, Size]:
    """What the large matrices of a quantised checkpoint are held as; nothing for another one."""
    if not isinstance(config.weights, CheckpointWeights) or folder is None:
        return {}
    if not is_gguf(folder) and not read_scheme(folder, read_json(folder / "config.json")).method:
        return {}
    found = read_found(config)[1]
    table = config.quant.format == "table4"
    return survey.sizes(found, requantises(config), _packed(config), table)


def read_found(config: Run) -> tuple[Path, Found]:
    """The folder of `config`'s weights, and what is in it, of which nothing is read yet."""
    folder = _folder(config.weights)
    if folder is None:
        raise ValueError("weights=random has no files; use weights=checkpoint weights.path=FOLDER")
    return folder, open_target(folder, _dtype(folder))


def _make(config: Run) -> Make:
    """How random matrices are made."""
    return AT_LOAD[config.quant.format].random if _packed(config) else dense


def _seed(source: Weights) -> int:
    return source.seed if isinstance(source, RandomWeights) else 0


def hold(params: T, config: Run, wide: bool) -> T:
    """`params` in the formats that `config` asks for: matrices, and what attention caches.

    `wide`: dense matrices in the dtype that the CPU multiplies natively. What is in its format
    already stays as it is.
    """
    if _packed(config):
        params, _ = AT_LOAD[config.quant.format].quantise_all(params)
    params = cached(params, config.kv.format)
    params = read_as(params, Many(config.prefill.activations, config.prefill.scratch_mib << 20))
    return resident(params) if wide else params


def cached(params: T, kv: str) -> T:
    """`params` whose attention layers cache keys and values in the format of that name."""

    def convert(x: Any) -> Any:
        if not isinstance(x, attention.Params):
            return x
        return dataclasses.replace(x, spec=dataclasses.replace(x.spec, cache=kv))

    return pytree.tree_map(convert, params, is_leaf=lambda x: isinstance(x, attention.Params))


def read_as(params: T, many: Many) -> T:
    """`params` whose 4-bit matrices multiply a prompt's tokens as `many` says."""

    def convert(x: Any) -> Any:
        return dataclasses.replace(x, many=many) if isinstance(x, Int4 | Table4) else x

    return pytree.tree_map(convert, params, is_leaf=lambda x: isinstance(x, Int4 | Table4))


def resident(params: T) -> T:
    """Dense matrices in the dtype that the CPU multiplies natively; the tile takes either."""

    def convert(x: Any) -> Any:
        if not isinstance(x, Dense):
            return x
        return dataclasses.replace(x, weight=x.weight.to(resident_dtype(x.weight.dtype)))

    return pytree.tree_map(convert, params, is_leaf=lambda x: isinstance(x, Dense))


def load_dflash2(
    folder: Path, target: text.Params, arrive: Arrive | None = None
) -> dflash2_net.Params:
    """A DFlash 2 draft for `target`, in the target's dtype and on its device; see `load_target`."""
    return import_dflash2(folder, target, arrive)[0]


def import_dflash2(
    folder: Path,
    target: text.Params,
    arrive: Arrive | None = None,
    requantise: Arrive | None = None,
) -> tuple[dflash2_net.Params, tuple[Held, ...]]:
    """`load_dflash2`, and what became of each tensor."""
    shape = read_dflash2(folder)
    vocab, d_model = target.embed.shape
    if (shape.vocab, shape.d_model) != (vocab, d_model):
        raise ValueError(
            f"{folder}: the draft is for {shape.vocab} x {shape.d_model} embeddings, the target has"
            f" {vocab} x {d_model}; take the draft that was trained for this target"
        )
    known = len(target.layers)
    if not shape.taps or not all(0 <= tap < known for tap in shape.taps):
        raise ValueError(
            f"{folder}: the draft reads layers {list(shape.taps)}, the target has 0 .. {known - 1};"
            " take the draft that was trained for this target"
        )
    if not 0 <= shape.mask_token < vocab:
        raise ValueError(
            f"{folder}: mask_token_id {shape.mask_token} is not among the {vocab} tokens; take the"
            " draft that was trained for this target"
        )
    dtype, device = target.norm.dtype, target.norm.device
    empty, table = _empty_dflash2(shape, dtype, device), dflash2_table(shape.layers)
    return load_into(folder, empty, table, device, arrive, requantise)


def open_dflash2(folder: Path, dtype: torch.dtype) -> tuple[Loading, dflash2_net.Params, Table]:
    """A draft's files, of which nothing is read yet, its shapes and its names."""
    shape = read_dflash2(folder)
    empty = _empty_dflash2(shape, dtype, torch.device("cpu"))
    table = dflash2_table(shape.layers)
    return open_into(folder, empty, table), empty, table


def _empty_dflash2(
    shape: dflash2_net.Config, dtype: torch.dtype, device: torch.device
) -> dflash2_net.Params:
    """Shapes alone, and the rotary tables, which no file has."""
    empty = skeleton(lambda generator: dflash2_net.init(shape, generator, dtype))
    table = rope(shape.max_positions, shape.d_head, shape.rope_theta, dtype, str(device))
    return dataclasses.replace(empty, rope=table)


def read_dflash2(folder: Path) -> dflash2_net.Config:
    return dflash2_net.Config.from_hf(read_json(folder / "config.json"))


def random_dflash2(chosen: Dflash2Shape, target: ModelConfig) -> dflash2_net.Config:
    """The shape of a draft for a target with random weights."""
    if target.d_model % chosen.conv_group:
        raise ValueError(
            f"draft.random.conv_group: {chosen.conv_group} does not divide the target's width of"
            f" {target.d_model}"
        )
    own = dataclasses.asdict(chosen)
    own["taps"] = tuple(sorted({tap * target.layers // DEPTH for tap in chosen.taps}))
    own["mask_token"] = min(chosen.mask_token, target.vocab - 1)
    return dflash2_net.Config(
        d_model=target.d_model,
        d_ff=target.d_ff,
        vocab=target.vocab,
        eps=target.eps,
        rope_theta=target.rope_theta,
        max_positions=target.max_positions,
        **own,
    )


def _draft_shape(
    chosen: DraftChoice, target: ModelConfig, folder: Path | None
) -> dflash2_net.Config | None:
    """The block draft that comes with the target, where one is chosen and there."""
    blocks = [part for part in chosen.parts() if isinstance(part, Dflash2Draft)]
    if not blocks:
        return None
    place = _draft_folder(blocks[0], folder)
    if place is None:
        return random_dflash2(blocks[0].random, target)
    return read_dflash2(place) if place.is_dir() else None


def _draft_folder(chosen: Dflash2Draft, folder: Path | None) -> Path | None:
    """Where a draft's files are, or should be; None: a random one."""
    if chosen.path or chosen.repo:
        return resolve(chosen.path or None, chosen.repo or None, chosen.revision)
    return folder / "draft" if folder else None


def sampling_of(config: Run) -> Sampling:
    """The settings of `config.sampling`, on the run's device."""
    return sampling(**dataclasses.asdict(config.sampling), device=config.device.resolve())
