"""Custom networks: subclasses of ``Transformer``, saved under their name, ``module:Class``.

Their constructor takes ``args`` only, because nothing else is saved: other settings belong in the class. config.json
has the name of the class, so that no other program takes the directory for a Llama. The name is only compared with the
class that the caller passes. Nothing is ever imported because a file names it.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
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
        imported = importlib.import_module(module)
    except Exception as error:  # the user's file can raise anything
        raise ValueError(
            f"network is {name!r}: {module} cannot be imported ({type(error).__name__}: {error})"
        ) from None
    network = getattr(imported, attribute, None)
    if not (isinstance(network, type) and issubclass(network, Transformer)):
        file = getattr(imported, "__file__", None)
        raise ValueError(
            f"network is {name!r}: {module} has no subclass of Transformer with this name; {file} was imported"
        )
    return network


def name_of(network: type[Transformer]) -> str | None:
    """The ``module:Class`` for ``find_network``; None for the plain network."""
    return None if network is Transformer else f"{network.__module__}:{network.__qualname__}"


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
        return network(args)


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
