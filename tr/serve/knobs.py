"""How tokens are to be drawn, as requests say it: every field is honoured or refused by name."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tr.serve.errors import invalid
from tr.serve.job import Settings

Number = Annotated[float, Field(allow_inf_nan=False)]

# Fields of OpenAI and of other servers that this one does not have, and what leaves them off.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": ({}, ""),
    "guided_regex": ("",),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "stop_token_ids": ([],),
    "structured_outputs": ({},),
    "suffix": ("",),
    "tfs_z": (1,),
    "top_a": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}


class Knobs(BaseModel):
    """Sampling fields under the names that all four protocols share."""

    model_config = ConfigDict(extra="allow")

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None

    def given(self) -> dict[str, Any]:
        """The fields that were sent, unknown ones too; what they hold is not copied."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def settings(self, defaults: Settings) -> Settings:
        """`defaults` under what was asked for; without a seed, one of its own."""
        names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
        asked = {name: getattr(self, name) for name in (*names, "top_k", "repetition_penalty")}
        asked = {name: value for name, value in asked.items() if value is not None}
        if self.top_k is not None:
            asked["top_k"] = max(0, self.top_k)  # -1 is off too
        if self.logit_bias is not None:
            asked["logit_bias"] = {_token(key): v for key, v in self.logit_bias.items()}
        seed = secrets.randbits(64) if self.seed is None else self.seed % 2**64
        return replace(defaults, seed=seed, **asked)

    def refuse_unsupported(self) -> None:
        """Raises a 400 that names the first field which would be dropped silently otherwise."""
        for name, value in (self.model_extra or {}).items():
            neutral = UNSUPPORTED.get(name)
            if neutral is not None and value is not None and value not in neutral:
                raise invalid(name, "not supported by this server; leave it out")


def stops(value: str | list[str] | None, param: str) -> tuple[str, ...]:
    """Stop strings; at most 16, none empty."""
    found = (value,) if isinstance(value, str) else tuple(value or ())
    if len(found) > 16:
        raise invalid(param, f"expected at most 16 strings, got {len(found)}")
    if "" in found:
        raise invalid(param, "expected strings of at least 1 character, got an empty one")
    return found


def seeded(settings: Settings, index: int) -> Settings:
    """For the answer `index` of several to one prompt: each has noise of its own."""
    return replace(settings, seed=(settings.seed + index) % 2**64)


def token_budget(asked: Mapping[str, int | None]) -> int | None:
    """The first limit that was given, by name."""
    for name, value in asked.items():
        if value is not None:
            if value < 1:
                raise invalid(name, f"expected at least 1, got {value}")
            return value
    return None


def _token(key: str) -> int:
    if not key.isdecimal() or not key.isascii() or len(key) > 9:
        raise invalid("logit_bias", f"expected token ids as keys, got {key[:40]!r}")
    return int(key)
