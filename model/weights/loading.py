"""Load a network from opened weights, whatever their format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..config import ModelArgs
from ..kernels import accelerate
from ..transformer import Transformer
from .int8 import check_device, put_matrix, quantize
from .layout import Shapes, check_shapes, shapes_of
from .variants import make_network, name_of


class Weights:
    """Opened weights: their configuration and headers have been read and checked, the tensors not."""

    path: Path
    args: ModelArgs
    dtype: torch.dtype  # in which the weights are stored
    shapes: Shapes
    subclass_name: str | None = None  # module:Class, if the weights are those of a subclass of Transformer

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name in the network, tensor), memory-mapped if the format allows it."""
        raise NotImplementedError

    def model(
        self,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | Literal["stored"] | None = None,
        network: type[Transformer] | None = None,
        int8: bool = False,
    ) -> Transformer:
        """Load the network; see ``load_model``."""
        network = network or Transformer
        if self.subclass_name and name_of(network) != self.subclass_name:
            raise ValueError(
                f"{self.path} holds the weights of {self.subclass_name}: they load only with the same network; give "
                f"--network {self.subclass_name}"
            )
        if int8 and network is not Transformer:
            raise ValueError(f"int8 is for the plain network, not for {name_of(network)}: leave it out")
        if int8:
            check_device(torch.device(device))
        model = make_network(network, self.args)
        check_shapes(shapes_of(model), self.shapes, self.path)  # a subclass may have other tensors
        # One dtype for all tensors, because some models store their norms in another one.
        new_dtype = self.dtype if dtype == "stored" else dtype or torch.float32
        state = {}
        for name, tensor in self.tensors():
            if int8 and tensor.ndim == 2:
                put_matrix(model, name, quantize(tensor.to(device)), new_dtype)
            else:
                # Copied, because a mapped tensor begins anywhere in a cache line, so that vectors of it lie in two, and
                # a token of 1.1B in bfloat16 takes 139 ms instead of 126 (Zen 4). A new one begins at a multiple of 64.
                state[name] = tensor.to(device, new_dtype if tensor.is_floating_point() else None, copy=True)
            del tensor  # before the next one is read, so that only one is in memory
        model.load_state_dict(state, strict=False, assign=True)  # checked above; the matrices in int8 are in place
        model.to(device)  # what a subclass has beside its state
        check_finite(model, self.path)
        if int8:
            model.requires_grad_(False)
        return accelerate(model.eval())


def check_finite(model: Transformer, path: Path) -> None:
    """Raise ValueError for the first tensor with NaN or infinity. A quantized matrix has it in its scales."""
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not all(bound.isfinite() for bound in tensor.aminmax()):  # NaN is both bounds of a tensor that contains it
            too_large = ", or load them in float32 if their numbers are too large for float16"
            raise ValueError(
                f"{path}: {name} contains NaN or infinity: get the weights again"
                + (too_large if tensor.dtype == torch.float16 else "")
            )
