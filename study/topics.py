"""The topics by name: functions whose parameters are their options, and which return a ``Report``."""

import inspect
from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any, get_type_hints

from model.cli import explain_out_of_memory
from model.ranges import raise_problems, range_problems

from .article import article
from .attention_maps import attention
from .check import check
from .clocks import clocks
from .compare import compare
from .decay import decay
from .exercise import exercise
from .extrapolate import endless, extrapolate
from .form_table import forms
from .kv_cache import cache
from .layouts import layouts
from .lookback import angles, lookback
from .notebook import notebook
from .page import page
from .rotation_examples import relative, rotate
from .topic import Report
from .trace import trace
from .what_if import whatif
from .word_order import order

# The topics by the step of the walk, docs/rope.md and docs/rope-models.md, that uses them
WALK: dict[str, tuple[Callable[..., Report], ...]] = {
    "the problem": (order,),
    "step 1": (rotate,),
    "step 2": (relative,),
    "step 3": (layouts, forms),
    "step 5": (clocks, decay),
    "step 6": (lookback, angles),
    "step 7": (trace,),
    "step 8": (cache,),
    "what if": (whatif,),
    "step 9": (attention,),
    "step 10": (extrapolate, endless),
    "step 11": (compare,),
    "step 13": (exercise, check),
    "the page": (page, article, notebook),
}
FUNCTIONS = [function for functions in WALK.values() for function in functions]
TOPICS: dict[str, Callable[..., Report]] = {function.__name__: function for function in FUNCTIONS}


def options_class(topic: Callable[..., Any]) -> type:
    """A dataclass with a field for each parameter of ``topic``; its instances raise ValueError out of their ranges."""
    hints = get_type_hints(topic, include_extras=True)
    fields = [(name, hints[name], parameter.default) for name, parameter in inspect.signature(topic).parameters.items()]
    namespace = {"__doc__": topic.__doc__, "__post_init__": lambda self: raise_problems(range_problems(self))}
    return make_dataclass(topic.__name__, fields, frozen=True, namespace=namespace)


def run(topic: str, **options: Any) -> Report:
    """The report of a topic. Raises ValueError if an option is out of its range, or the memory is not enough."""
    checked = vars(options_class(TOPICS[topic])(**options))
    with explain_out_of_memory(f"give {topic} a smaller model"):
        return TOPICS[topic](**checked)
