"""Custom networks: subclasses of ``Transformer``, saved under their name, ``module:Class``.

config.json has the name of the class, so that no other program takes the directory for a Llama. The name is only
compared with the class that the caller passes. Nothing is ever imported because a file names it.
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


def find_network(name: str) -> type[Transformer]:
    """Import the class ``module:Class``, from the current directory first, then from installed packages.

    Raises ValueError if it does not exist, cannot be imported, or is not a subclass of ``Transformer``.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"network is {name!r}: give module:Class, for example mypackage.sliding:SlidingTransformer")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        network = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # the user's file can raise anything
        raise ValueError(
            f"network is {name!r}: {module} cannot be imported ({type(error).__name__}: {error})"
        ) from None
    if network is None:
        raise ValueError(f"network is {name!r}: there is no {attribute} in {module}")
    if not (isinstance(network, type) and issubclass(network, Transformer)):
        raise ValueError(f"network is {name!r}: give a subclass of Transformer")
    return network


def name_of(network: type[Transformer]) -> str | None:
    """The ``module:Class`` for ``find_network``; None for the plain network."""
    if network is Transformer:
        return None
    module = network.__module__
    if module == "__main__":  # other processes import a script under the name of its file
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    return f"{module}:{network.__qualname__}"


def make_network(network: type[Transformer], args: ModelArgs) -> Transformer:
    """Build a network to load weights into.

    The plain network is built on the meta device, without memory for the weights. A subclass is built on the CPU,
    because it may compute tensors that the file does not contain, which would have no values on the meta device. Its
    parameters are not initialized, to save time. This does not change the state of the random number generators.
    """
    if network is Transformer:
        with torch.device("meta"), _NoRandomParameters():
            return Transformer(args)
    with torch.random.fork_rng(devices=[]), _NoRandomParameters():
        try:
            return network(args)
        except TypeError as error:
            raise ValueError(f"{name_of(network)} cannot be made from ModelArgs alone ({error})") from None


RANDOM = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


class _NoRandomParameters(TorchFunctionMode):
    """Skip the random initialization of parameters. On the meta device it would import hundreds of modules."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RANDOM:
            tensor = args[0] if args else kwargs["tensor"]
            if isinstance(tensor, nn.Parameter):
                return tensor
        return func(*args, **kwargs)


def check_rebuilds(model: Transformer) -> None:
    """Raise ValueError if ``type(model)(model.args)`` with the same weights would be a different network.

    Other arguments of the constructor are not saved. They are detected by attributes and tensors that differ.
    """
    rebuilt = dict(make_network(type(model), model.args).named_modules())
    for path, module in model.named_modules():
        original, copy = dict(_settings(module)), dict(_settings(rebuilt.get(path)))
        for name in original.keys() | copy.keys():
            if not _equal(original.get(name), copy.get(name)):
                full_name = f"{path}.{name}" if path else name
                raise ValueError(
                    f"{full_name} differs from that of {name_of(type(model))}(args): set it in __init__ from args alone"
                )


def _settings(module: nn.Module | None) -> Iterator[tuple[str, Any]]:
    """Yield the public attributes that are plain values, tensors, or lists of these, except those in the state dict."""
    if module is None:
        return
    for name, value in (vars(module) | dict(module.named_buffers(recurse=False))).items():
        items = value if isinstance(value, tuple | list) else [value]
        is_plain = all(isinstance(item, bool | int | float | str | Tensor | None) for item in items)
        is_excluded = name in module.state_dict() or name == "training" or name.startswith("_")
        if is_plain and not is_excluded:
            yield name, value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a.to(b), b)
    if isinstance(a, tuple | list) and type(a) is type(b):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and bool(a == b)
