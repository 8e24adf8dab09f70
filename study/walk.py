"""The topics by the step of the walk, docs/rope.md and docs/rope-models.md, that uses them.

This file imports nothing of the project, so that `python -m study` lists the topics without waiting for PyTorch.
"""

from typing import NamedTuple

WALK = {  # step: topic: (the module of this package with the function of this name, what it shows)
    "the problem": {
        "order": ("word_order", "Attention without positions ignores the word order; with RoPE it does not."),
    },
    "step 1": {
        "rotate": ("rotation_examples", "The worked example: vectors of four numbers, rotated pair by pair."),
    },
    "step 2": {
        "relative": (
            "rotation_examples",
            "Scores depend on m - n only if q and k are rotated, and not if the embedding is.",
        ),
    },
    "step 3": {
        "layouts": (
            "layouts",
            "Which two channels are a pair: neighbours, halves, and a mixture that is not relative.",
        ),
        "forms": ("form_table", "The published forms of RoPE, side by side: deviation and permutation."),
    },
    "step 5": {
        "clocks": ("clocks", "The pairs of a head as clocks: their frequencies, and how many tokens a turn takes."),
        "decay": ("decay", "Long-term decay: RoFormer's bound and the inner product itself, over distance."),
    },
    "step 6": {
        "lookback": ("lookback", "A head that looks five tokens back: its W_q and W_k, and its score over distance."),
        "angles": ("lookback", "The angles from the mean key to the mean query of a trained head, beside -theta_i."),
    },
    "step 7": {
        "trace": ("trace", "One attention call step by step: expression, shape, dtype and the values of one pair."),
    },
    "step 8": {
        "cache": ("kv_cache", "The KV cache, call by call: slots written and read, work saved, and equal logits."),
    },
    "what if": {
        "whatif": ("what_if", "The loss of a trained model with other positions, another base and the other layout."),
    },
    "step 9": {
        "attention": (
            "attention_maps",
            "Which tokens each head of a trained model attends to, with rotation and without.",
        ),
    },
    "step 10": {
        "extrapolate": (
            "extrapolate",
            "Loss within and past the trained length, with scaled positions and with windows.",
        ),
        "endless": ("extrapolate", "Loss far past the context with a cache that evicts old tokens."),
    },
    "step 11": {
        "compare": ("compare", "The same small model with each position encoding, tested at up to 8 times its length."),
    },
    "step 13": {
        "exercise": (
            "exercise",
            "Files with docstrings and no bodies: write RoPE, layouts, a mask, a cache and attention.",
        ),
        "check": ("check", "Check your own RoPE, mask, cache and attention: each is right, or its mistake is named."),
    },
    "the page": {
        "page": ("page", "One HTML file that runs a model in a browser, with its rotations, scores and cache."),
        "article": ("article", "The walk as web pages, with live figures that run a trained model."),
        "notebook": ("notebook", "The walk as a notebook: its code and its commands are cells that run."),
    },
}


class Topic(NamedTuple):
    name: str  # of the topic and of its function
    module: str  # of this package
    sentence: str


TOPICS = {name: Topic(name, *about) for topics in WALK.values() for name, about in topics.items()}


def overview() -> str:
    """The text of `python -m study`."""
    width = max(map(len, TOPICS))
    lines = [
        "usage: python -m study TOPIC [--zh] [--plot FILE.svg] [flags]",
        "",
        "Explain RoPE: `python -m study TOPIC` prints a table; most draw a picture with --plot FILE.svg.",
        "With --zh, tables and pictures are in Chinese.",
        "The steps are those of docs/rope.md and docs/rope-models.md.",
        "",
    ]
    for step, topics in WALK.items():
        for topic, (_, sentence) in topics.items():
            lines.append(f"  {step:<11}  {topic:<{width}}  {sentence}")
            step = ""  # stands beside its first topic only
    return "\n".join([*lines, "", "python -m study TOPIC --help lists the flags of a topic."])
