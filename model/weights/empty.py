"""A network that waits for a checkpoint's weights."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..config import ModelArgs
from ..transformer import Transformer


class _NoInit(TorchFunctionMode):
    """Leaves out ``nn.init``: random numbers for tensors without memory would cost seconds of imports inside torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def empty_network(args: ModelArgs) -> Transformer:
    """On the meta device: shapes and the rotation table, no weights."""
    with torch.device("meta"), _NoInit():
        return Transformer(args)
