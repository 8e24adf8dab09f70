"""Watch running code: which expression of which line made which tensor. Nothing is copied out of the library.

Every torch call passes through a ``TorchFunctionMode``. From there the stack leads back to the library's line, and
the code object knows from which column to which the expression that is being evaluated reaches.
"""

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Step:
    place: str  # file:line
    expression: str
    value: Tensor


class Recorder(TorchFunctionMode):
    """Keeps, for each watched function of the library, the steps in which it makes a tensor of another kind."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.watched: set[CodeType] = {function.__code__ for function in functions}
        self.steps: list[Step] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        frame = self._library_frame(sys._getframe(1))
        if frame is not None and isinstance(result, Tensor):
            self.steps.append(Step(*_expression(frame), result.detach().clone()))
        return result

    def _library_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the library, if it is a watched function: torch's own frames are looked through."""
        while frame is not None:
            if frame.f_code in self.watched:
                return frame
            if Path(frame.f_code.co_filename).is_relative_to(ROOT):
                return None if frame.f_code.co_name not in ("<genexpr>", "<listcomp>") else self._around(frame)
            frame = frame.f_back
        return None

    def _around(self, frame: FrameType) -> FrameType | None:
        """A generator expression belongs to the function that runs it, and keeps its own place in the text."""
        outer = frame.f_back
        while outer is not None and Path(outer.f_code.co_filename) != Path(frame.f_code.co_filename):
            outer = outer.f_back
        return frame if outer is not None and outer.f_code in self.watched else None


def _expression(frame: FrameType) -> tuple[str, str]:
    """(file:line, source text) of what the frame is evaluating."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None:  # no columns were compiled in: the whole line
        first = last = frame.f_lineno
        start, end = 0, None
    lines = [linecache.getline(frame.f_code.co_filename, n).rstrip("\n") for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return f"{Path(frame.f_code.co_filename).name}:{first}", " ".join(line.strip() for line in lines)


def watch(functions: list[Callable[..., Any]], call: Callable[[], Any]) -> list[Step]:
    """Every step that these functions of the library take while ``call`` runs."""
    with torch.no_grad(), Recorder(*functions) as recorder:
        call()
    return recorder.steps
