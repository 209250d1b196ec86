"""What a text begins with, and how its tokens are drawn."""

from dataclasses import dataclass, field
from os.path import expanduser

from omegaconf import MISSING

from tr.config.choice import check_choice, check_range


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
