"""What OpenAI-compatible servers tell of themselves, and the words each has for one request.

`recognise` finds out by a server's own paths which one it is. Unknown ones are asked in OpenAI's
words alone. Sampling is always spelled out: a server's defaults, or those that a checkpoint brings,
would otherwise decide.
"""

import os
import re
import secrets
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from experiments.openai_stream import Server, told
from tr.config import Sampling

Facts = dict[str, Any]
TR, LLAMA, LLAMA_PYTHON = "tr", "llama.cpp", "llama-cpp-python"
VLLM, SGLANG, TABBY, OLLAMA, UNKNOWN = "vLLM", "SGLang", "TabbyAPI", "ollama", "unknown"
SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.M)
POSITION = re.compile(r'position="(\d+)"')
SGLANG_FLAGS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "attention_backend",
    "tp_size",
    "disable_radix_cache",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
TABBY_FLAGS = ("max_seq_len", "cache_size", "cache_mode", "max_batch_size", "chunk_size")


@dataclass(frozen=True)
class Found:
    """Which server it is, and what it tells of its version and flags."""

    kind: str
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Drafted:
    """Counters of speculation: verify steps, drafted and accepted tokens, the latter by position.

    `steps` 0: the server does not count them.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: tuple[int, ...] = ()

    def since(self, before: "Drafted") -> "Drafted":
        old = [*before.reached, *[0] * (len(self.reached) - len(before.reached))]
        return Drafted(
            self.steps - before.steps,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(a - b for a, b in zip(self.reached, old, strict=False)),
        )

    def plus(self, other: "Drafted") -> "Drafted":
        longer, shorter = sorted((self.reached, other.reached), key=len, reverse=True)
        padded = (*shorter, *[0] * (len(longer) - len(shorter)))
        return Drafted(
            self.steps + other.steps,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            tuple(a + b for a, b in zip(longer, padded, strict=True)),
        )


def _tr(told: Facts) -> Facts | None:
    if "conversations" not in told:
        return None
    return {"context": told["context"]["capacity"]}


def _sglang(told: Facts) -> Facts | None:
    if "internal_states" not in told:
        return None
    return {"version": told.get("version"), **_some(told, SGLANG_FLAGS)}


def _llama(told: Facts) -> Facts | None:
    if "default_generation_settings" not in told:
        return None
    return {
        "version": told.get("build_info"),
        "file": PurePath(str(told.get("model_path", ""))).name,
        "file_type": told.get("model_ftype"),
        "context": told["default_generation_settings"].get("n_ctx"),
        "slots": told.get("total_slots"),
    }


def _tabby(told: Facts) -> Facts | None:
    if told.get("owned_by") != "tabbyAPI":
        return None
    parameters = told.get("parameters") or {}
    draft = parameters.get("draft") or {}
    return {"loaded": told.get("id"), **_some(parameters, TABBY_FLAGS), "draft": draft.get("id")}


def _version(told: Facts) -> Facts | None:
    return {"version": told["version"]} if set(told) == {"version"} else None


def _llama_python(told: Facts) -> Facts | None:
    info = told.get("info") or {}
    known = "llama.cpp Python API" in str(info.get("title"))
    return {"version": info.get("version")} if known else None


PROBES: tuple[tuple[str, str, Callable[[Facts], Facts | None]], ...] = (
    (TR, "/v1/tr/state", _tr),
    (SGLANG, "/server_info", _sglang),
    (SGLANG, "/get_server_info", _sglang),  # its older name
    (LLAMA, "/props", _llama),
    (TABBY, "/v1/model", _tabby),
    (VLLM, "/version", _version),
    (OLLAMA, "/api/version", _version),
    (LLAMA_PYTHON, "/openapi.json", _llama_python),
)


def recognise(server: Server) -> Found:
    for kind, path, read in PROBES:
        answer = told(server, path)
        if isinstance(answer, dict) and (facts := read(answer)) is not None:
            return Found(kind, {k: v for k, v in facts.items() if v not in (None, "")})
    return Found(UNKNOWN)


def _some(told: Facts, names: tuple[str, ...]) -> Facts:
    plain = (bool, int, float, str)
    return {name: told[name] for name in names if isinstance(told.get(name), plain)}


def fields(kind: str, sampling: Sampling, thinking: bool, ignore_eos: bool) -> Facts:
    """The fields of a request beside its prompt, model and length, in the words of `kind`."""
    s = sampling
    asked: Facts = {
        "temperature": s.temperature,
        "top_p": s.top_p,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "seed": s.seed,
    }
    if kind == OLLAMA:
        return asked | ({} if thinking else {"reasoning_effort": "none"})
    if kind == UNKNOWN:
        return asked
    off = 0 if kind == LLAMA_PYTHON else -1  # SGLang refuses 0, llama-cpp-python -1
    asked["top_k"] = s.top_k or off
    asked["min_p"] = s.min_p
    penalty = "repeat_penalty" if kind in (LLAMA, LLAMA_PYTHON) else "repetition_penalty"
    asked[penalty] = s.repetition_penalty
    if kind != LLAMA_PYTHON:
        asked["chat_template_kwargs"] = {"enable_thinking": thinking}
        asked["ignore_eos"] = ignore_eos
    if kind == TR:
        asked["timings"] = True
    return asked


def request(
    server: Server,
    kind: str,
    model: str,
    sampling: Sampling,
    tokens: int,
    thinking: bool,
    ignore_eos: bool,
) -> Facts:
    """All of a request but its prompt, which the server is told to forget first."""
    return {
        **fields(kind, sampling, thinking, ignore_eos),
        **(forget(server, kind) or {}),
        "model": model,
        "max_tokens": tokens,
    }


def key_of(variable: str) -> str:
    """The key in an environment variable, none without a name; raises ValueError if it is unset."""
    if variable and not os.environ.get(variable):
        raise ValueError(f"params.key_env={variable}: this environment variable is not set")
    return os.environ[variable] if variable else ""


def unheard(kind: str, sampled: bool, ignore_eos: bool) -> list[str]:
    """What a run asks for that `fields` has no words for."""
    lacking = kind in (OLLAMA, UNKNOWN)
    found = ["ignore_eos"] if ignore_eos and (lacking or kind == LLAMA_PYTHON) else []
    return found + (["top_k", "min_p", "repetition_penalty"] if sampled and lacking else [])


def forget(server: Server, kind: str) -> Facts | None:
    """What makes the next prompt one that was never read: further fields of its request.

    None: this server cannot be told.
    """
    if kind == TR:
        told(server, "/v1/tr/state", method="DELETE")
        return {}
    if kind == LLAMA:
        return {"cache_prompt": False}
    if kind in (VLLM, SGLANG):
        return {"cache_salt": secrets.token_hex(8)}
    return None


def count(server: Server, kind: str, model: str, text: str) -> int | None:
    """Tokens of a text by the server's own tokenizer, where it has a path for that."""
    bodies: dict[str, tuple[str, Facts]] = {
        TR: ("/tokenize", {"content": text}),
        LLAMA: ("/tokenize", {"content": text, "add_special": False}),
        VLLM: ("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}),
        SGLANG: ("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}),
        TABBY: ("/v1/token/encode", {"text": text, "add_bos_token": False}),
        LLAMA_PYTHON: ("/extras/tokenize", {"input": text}),
    }
    if kind not in bodies:
        return None
    answer = told(server, *bodies[kind])
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list):
        return None
    return len(tokens) - (kind == LLAMA_PYTHON)  # which puts a first one before every text


def drafted(server: Server, kind: str) -> Drafted | None:
    """The counters of /metrics; None where the server has none."""
    if kind not in (TR, LLAMA, VLLM):
        return None
    text = told(server, "/metrics")
    if not isinstance(text, str):
        return None
    sums: dict[str, float] = defaultdict(float)
    reached: dict[int, float] = defaultdict(float)
    per_position = "draft_accepted_total" if kind == TR else "accepted_tokens_per_pos_total"
    for name, labels, value in SAMPLE.findall(text):
        name = name.removeprefix("tr_").rpartition(":spec_decode_num_")[2]
        sums[name] += float(value)
        if name == per_position and (at := POSITION.search(labels)):
            reached[int(at[1])] += float(value)
    names = ("drafts_total", "draft_tokens_total", "accepted_tokens_total")
    if kind == TR:
        names = ("accepted_per_step_count", "draft_tokens_total", "draft_accepted_total")
    if names[1] not in sums and names[0] not in sums:
        return None
    made, proposed, kept = (round(sums[name]) for name in names)
    places = tuple(round(reached[n]) for n in sorted(reached))
    return Drafted(made, proposed, kept, places)


def own_figures(server: Server, kind: str, model: str, prompt: str, tokens: int) -> Facts:
    """What a server tells elsewhere: SGLang's tokens per step over all that it did since it was
    started, ollama's own speeds of one more greedy answer.
    """
    if kind == SGLANG:
        for path in ("/server_info", "/get_server_info"):
            answer = told(server, path)
            states = answer.get("internal_states") if isinstance(answer, dict) else None
            for state in states or []:
                if isinstance(length := state.get("avg_spec_accept_length"), int | float):
                    return {"tokens_per_step_since_start": float(length)}
    if kind == OLLAMA:
        options = {"temperature": 0, "num_predict": tokens}
        body = {"model": model, "prompt": prompt, "stream": False, "options": options}
        answer = told(server, "/api/generate", body, patience=server.patience)
        if not isinstance(answer, dict):
            return {}
        names = {"eval": "decode", "prompt_eval": "prompt"}
        speeds = {f"own_{key}_tokens_per_s": _rate(answer, name) for name, key in names.items()}
        return {name: speed for name, speed in speeds.items() if speed is not None}
    return {}


def _rate(told: Any, name: str) -> float | None:
    """Tokens per second of ollama's count and nanoseconds."""
    count, time = (told.get(f"{name}_{part}") for part in ("count", "duration"))
    return count / (time * 1e-9) if count and time else None
