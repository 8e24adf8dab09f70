"""Networks of one's own: subclasses of ``Transformer``, which checkpoints hold under their name, ``module:Class``.

A directory names its network in config.json, so that no other program takes it for a Llama. The name is compared with
the class that the caller passes; nothing is ever imported because a file says so.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..config import ModelArgs
from ..transformer import Transformer

PACKAGE_NAME = __name__.partition(".")[
    0
]  # this project's: ``model`` in the repository, ``ropewalk`` where it is installed


def portable_name(name: str) -> str:
    """A name to write into a file: modules of this package begin with ``ropewalk``, which holds in both places."""
    return f"ropewalk{name.removeprefix(PACKAGE_NAME)}" if name.startswith(f"{PACKAGE_NAME}.") else name


def local_name(name: str) -> str:
    """A name that ``portable_name`` wrote, as this process imports it."""
    return f"{PACKAGE_NAME}{name.removeprefix('ropewalk')}" if name.startswith("ropewalk.") else name


def find_network(name: str) -> type[Transformer]:
    """The class that ``module:Class`` names; the current directory is searched first, then what is installed.

    Raises ValueError when it is not there, cannot be imported, or is no subclass of ``Transformer``.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"network is {name!r}: give module:Class, such as mypackage.sliding:SlidingTransformer")
    module = local_name(module)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # whatever the user's own file raises
        raise ValueError(
            f"network is {name!r}: {module} cannot be imported ({type(error).__name__}: {error})"
        ) from None
    if found is None:
        raise ValueError(f"network is {name!r}: there is no {attribute} in {module}")
    if not (isinstance(found, type) and issubclass(found, Transformer)):
        raise ValueError(f"network is {name!r}: give a subclass of {PACKAGE_NAME}.Transformer")
    return found


def name_of(network: type[Transformer]) -> str | None:
    """``module:Class`` as ``find_network`` takes it; None for the plain network."""
    if network is Transformer:
        return None
    module = network.__module__
    if module == "__main__":  # a script that is run is imported under its file's name elsewhere
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    return f"{module}:{network.__qualname__}"


def make_network(network: type[Transformer], args: ModelArgs) -> Transformer:
    """A network to load weights into.

    The plain one is made without memory, on the meta device: shapes and the rotation table. A variant is made in
    full, since it may compute tensors of its own; its random numbers do not change those of others.
    """
    if network is Transformer:
        with torch.device("meta"), _NoInitialization():
            return Transformer(args)
    with torch.random.fork_rng(devices=[]):
        try:
            return network(args)
        except TypeError as error:
            raise ValueError(f"{name_of(network)} cannot be made from ModelArgs alone ({error})") from None


class _NoInitialization(TorchFunctionMode):
    """Leaves ``nn.init`` out: on the meta device its normal distribution imports 800 modules of torch, one second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def check_rebuilds(model: Transformer) -> None:
    """Raise ValueError when ``type(model)(model.args)`` with the same weights would be another network.

    A constructor's other arguments show as an attribute or a tensor that differs: no file holds them.
    """
    again = dict(make_network(type(model), model.args).named_modules())
    for place, module in model.named_modules():
        before, after = dict(_settings(module)), dict(_settings(again.get(place)))
        for name in before.keys() | after.keys():
            if not _same(before.get(name), after.get(name)):
                full = f"{place}.{name}" if place else name
                raise ValueError(
                    f"{full} is not what {name_of(type(model))}(args) makes it: set it in __init__ from args alone"
                )


def _settings(module: nn.Module | None) -> Iterator[tuple[str, Any]]:
    """Numbers, texts and tensors among the attributes; weights and persistent buffers are saved, and left out."""
    if module is None:
        return
    for name, value in (vars(module) | dict(module.named_buffers(recurse=False))).items():
        items = value if isinstance(value, tuple | list) else [value]
        plain = all(isinstance(item, bool | int | float | str | Tensor | None) for item in items)
        saved = name in module.state_dict() or name == "training" or name.startswith("_")
        if plain and not saved:
            yield name, value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a.to(b), b)
    if isinstance(a, tuple | list) and type(a) is type(b):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and bool(a == b)
