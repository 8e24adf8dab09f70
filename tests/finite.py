"""A guard for tests: no product, attention, norm or convolution may be given NaN or infinity, on any processor.

Some libraries read past the end of a row and multiply the numbers there by zero. The result is right as long as all
numbers are finite, so a NaN in a padding slot would be harmful on some processors only. Masks may hold -inf.
"""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "linear", "matmul", "_linear_pointwise")
OTHERS = (
    "_weight_int8pack_mm",
    "rsqrt",
    "mean",
    "rms_norm",
    "_fused_rms_norm",
    "native_layer_norm",
    "einsum",
    "convolution",
)
ATTENTION = "scaled_dot_product"  # PyTorch's fused kernels; their fourth or later argument is the mask


class FiniteInputs(TorchDispatchMode):
    """Raises AssertionError if a product is given NaN or infinity. ``seen`` counts the tensors that were checked."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        checked: tuple[Any, ...] = ()
        if name in PRODUCTS + OTHERS:
            checked = args
        elif ATTENTION in name:
            checked = args[:3]  # without the mask
        for tensor in checked:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self.seen += 1
                numbers = tensor.to_dense() if tensor.is_mkldnn else tensor
                assert numbers.isfinite().all(), (
                    f"{name} is given NaN or infinity, in a tensor of {tuple(tensor.shape)}"
                )
        return func(*args, **(kwargs or {}))
