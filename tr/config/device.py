"""Where to run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from omegaconf import MISSING

from tr.config.choice import check_choice

if TYPE_CHECKING:  # torch takes seconds to import, and a typing error should not wait for it
    import torch


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
