"""What the fast variants' launches share: the checks of their tensors."""

from torch import Tensor

from kernels.gpu import check, same_dtype

ONE_DTYPE = ("qkvz", "conv_weight", "norm_weight", "tail", "ba", "past_x")


def check_inputs(**tensors: Tensor) -> None:
    """Refuse what the kernels would read wrongly, and more rows than the records hold."""
    rows, held = tensors["qkvz"].shape[0], tensors["past_x"].shape[0]
    check("gated_delta_step", rows, **tensors)
    same_dtype("gated_delta_step", **{name: tensors[name] for name in ONE_DTYPE})
    if rows > held:
        raise ValueError(f"gated_delta_step: {rows} rows, but records of {held}")
