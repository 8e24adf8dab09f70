"""The options of a topic, which are the parameters of its function, as a dataclass for flags and checks."""

import inspect
from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any, get_type_hints

from model.ranges import raise_problems, range_problems


def options_class(topic: Callable[..., Any]) -> type:
    """A dataclass with a field for each parameter of ``topic``; its instances raise ValueError out of their ranges."""
    hints = get_type_hints(topic, include_extras=True)
    fields = [(name, hints[name], parameter.default) for name, parameter in inspect.signature(topic).parameters.items()]
    namespace = {"__doc__": topic.__doc__, "__post_init__": lambda self: raise_problems(range_problems(self))}
    return make_dataclass(topic.__name__, fields, frozen=True, namespace=namespace)
