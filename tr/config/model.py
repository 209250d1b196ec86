"""A model's shape, and where its weights come from."""

from dataclasses import dataclass, fields
from os.path import expanduser
from typing import TYPE_CHECKING

from omegaconf import MISSING

from tr.config.choice import check_choice

if TYPE_CHECKING:  # torch takes seconds to import, and a typing error should not wait for it
    from tr.model.config import ModelConfig


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
