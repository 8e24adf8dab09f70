"""A card that is not here: what the code decides by the type of a device, it decides as on one, and a CPU computes."""

from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class OnCard(TorchFunctionMode):
    """All tensors claim to be on an NVIDIA card, and stay where they are. ``waits`` counts the waits for it."""

    def __enter__(self) -> Any:
        self.stream = patch.object(torch.cuda, "current_stream", MagicMock())
        self.event = self.stream.start().return_value.record_event.return_value
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.stream.stop()

    @property
    def waits(self) -> int:
        return self.event.synchronize.call_count

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.device.__get__:
            return torch.device("cuda")
        kwargs = {name: here(value) for name, value in (kwargs or {}).items()}
        return func(*map(here, args), **kwargs)


def here(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value
