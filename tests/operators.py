"""Counts the operators that run on a device. Each starts a kernel or more; views and empty tensors start none."""

from collections import Counter
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FUSED = (F.rms_norm, F.scaled_dot_product_attention)  # one kernel each on a GPU, whatever the meta device makes of them


class Operators(TorchDispatchMode):
    """``counts``: how often each operator ran. With ``Fused`` a fused one counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.is_fused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not (self.is_fused or func.is_view or name.startswith("empty") or name == "_unsafe_view"):
            self.counts[name] += 1
        return func(*args, **kwargs or {})


class Fused(TorchFunctionMode):
    def __init__(self, operators: Operators) -> None:
        super().__init__()
        self.operators = operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in FUSED or self.operators.is_fused:
            return func(*args, **kwargs or {})
        self.operators.counts[func.__name__] += 1
        self.operators.is_fused = True
        try:
            return func(*args, **kwargs or {})
        finally:
            self.operators.is_fused = False


def count_operators(function: Any, *arguments: Any) -> Counter[str]:
    """The operators that ``function(*arguments)`` runs."""
    operators = Operators()
    with Fused(operators), operators:
        function(*arguments)
    return operators.counts
