"""Whether an answer begins with a thought, how hard it tries, and how long it may be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tr.serve.errors import invalid

EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "medium",
    "xhigh": "xhigh",
    "max": "xhigh",
}


@dataclass(frozen=True)
class Thinking:
    """`effort`: a word of the chat template. `budget`: tokens of the thought, None: no bound.
    `preserve`: earlier turns keep theirs. `shown`: in the answer.
    """

    on: bool
    effort: str
    budget: int | None = None
    preserve: bool = True
    shown: bool = True


@dataclass(frozen=True)
class Defaults:
    """For OpenAI requests that say nothing; `efforts`: what clients say -> a word of the template.

    The word that adds nothing to a prompt lets thinking and not thinking share its beginning.
    """

    on: bool = True
    effort: str = "medium"
    efforts: Mapping[str, str] = field(default_factory=lambda: EFFORTS)

    def word(self, said: Any, param: str) -> str:
        if said is None:
            return self.effort
        if not isinstance(said, str) or said not in self.efforts:
            known = ", ".join(self.efforts)
            raise invalid(param, f"expected one of {known}, got {said!r:.40}")
        return self.efforts[said]


def openai(body: Mapping[str, Any], defaults: Defaults) -> Thinking:
    """From the fields of Chat Completions and Responses, OpenAI's own and the usual others.

    `enable_thinking` wins over an effort of none; a template argument over the field of that name.
    """
    template = _mapping(body, "chat_template_kwargs")
    param, effort = "reasoning_effort", body.get("reasoning_effort")
    if effort is None:
        param, effort = "reasoning.effort", _mapping(body, "reasoning").get("effort")
    if template.get("reasoning_effort") is not None:
        param, effort = "chat_template_kwargs.reasoning_effort", template["reasoning_effort"]
    on = defaults.on if effort is None else effort != "none"
    switch = _mapping(body, "thinking").get("type")
    if switch is not None:
        if switch not in ("enabled", "disabled", "adaptive"):
            raise invalid("thinking.type", "expected enabled, adaptive or disabled")
        on = switch != "disabled"
    for name, source in (("", body), ("chat_template_kwargs.", template)):
        if source.get("enable_thinking") is not None:
            on = _flag(source["enable_thinking"], f"{name}enable_thinking")
    preserve = template.get("preserve_thinking")
    budget = None
    for name in ("thinking_budget", "thinking_token_budget"):
        if body.get(name) is not None:
            budget = _count(body[name], name)
    if budget == 0:
        on = False
    return Thinking(
        on,
        defaults.word(None if effort == "none" else effort, param),
        budget,
        True if preserve is None else _flag(preserve, "chat_template_kwargs.preserve_thinking"),
    )


def anthropic(body: Mapping[str, Any], defaults: Defaults) -> Thinking:
    """From `thinking` and `output_config.effort`; an effort alone starts no thought."""
    effort = defaults.word(_mapping(body, "output_config").get("effort"), "output_config.effort")
    said = _mapping(body, "thinking")
    kind = said.get("type", "disabled")
    if kind not in ("enabled", "adaptive", "between_tools", "disabled"):
        raise invalid("thinking.type", f"expected enabled, adaptive or disabled, got {kind!r:.40}")
    budget = said.get("budget_tokens") if kind == "enabled" else None
    if budget is not None:
        if _count(budget, "thinking.budget_tokens") < 1024:
            raise invalid("thinking.budget_tokens", f"expected at least 1024, got {budget}")
        most = body.get("max_tokens")
        if most is not None and budget >= most:  # as where thoughts alternate with calls
            budget = None
    return Thinking(kind != "disabled", effort, budget, shown=said.get("display") != "omitted")


def _mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise invalid(name, f"expected an object, got {type(value).__name__}")
    return value or {}


def _flag(value: Any, param: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(param, f"expected true or false, got {value!r:.40}")
    return value


def _count(value: Any, param: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise invalid(param, f"expected a number of tokens, got {value!r:.40}")
    return value
