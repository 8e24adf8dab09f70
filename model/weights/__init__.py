"""Checkpoints on disk: a run directory, Hugging Face, Meta and llama2.c, recognized by their files.

checkpoint.py        any of them
variants.py          subclasses of the network, saved under their name
tensors.py           safetensors files
layout.py            the tensors' names and shapes, and why query and key rows are permuted
hf_config.py         config.json <-> ModelArgs
huggingface.py       Hugging Face's directories, and so our own runs
meta.py              Meta's directories
llama2c.py           llama2.c's .bin files
int8.py              matrices in eight bits, and the product with them
tokenizers.py        the tokenizer that belongs to the weights
"""

from .checkpoint import Checkpoint, check, load_args, load_model, open_checkpoint, save_model
from .tokenizers import find_tokenizer, load_tokenizer, save_tokenizer
from .variants import find_network

__all__ = [
    "Checkpoint",
    "check",
    "find_network",
    "find_tokenizer",
    "load_args",
    "load_model",
    "load_tokenizer",
    "open_checkpoint",
    "save_model",
    "save_tokenizer",
]
