"""The faults of faults.toml: for each, the name of the mistake, why it is wrong, and the step of docs/rope.md about it.

``table.py``, ``reshape.py``, ``rotation.py``, ``mask.py``, ``cache.py`` and ``attention.py`` have the formulas.
"""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Fault(NamedTuple):
    name: str
    why: str
    step: int

    def only_in(self, tensor: str) -> "Fault":
        """The same fault, made in one of two tensors."""
        return self._replace(name=f"{self.name}, in {tensor} only")


TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
FAULTS = {key: Fault(**texts) for key, texts in tomllib.loads(TEXT).items()}


def in_common(rules: Iterable[tuple[Fault, Callable[..., bool]]], cases: Sequence[tuple[Any, ...]]) -> Fault | None:
    """The fault of the first rule that holds for all cases."""
    return next((fault for fault, rule in rules if cases and all(rule(*case) for case in cases)), None)
