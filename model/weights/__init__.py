"""Checkpoints on disk: run directories, Hugging Face, Meta and llama2.c, recognized by their files.

checkpoint.py        open and load a checkpoint of any format; save one in Hugging Face's
variants.py          subclasses of the network, saved under their class name
tensors.py           safetensors files
layout.py            names and shapes of the tensors, and why query and key rows are permuted
hf_config.py         config.json <-> ModelArgs
huggingface.py       Hugging Face directories, which includes run directories
meta.py              Meta's directories
llama2c.py           llama2.c's .bin files
int8.py              int8 weights, and layers that use them
memory.py            where weights lie in memory, so that a CPU reads them fast
tokenizers.py        the tokenizer of a checkpoint
"""

from .checkpoint import Checkpoint, load_args, load_model, open_checkpoint, save_model
from .tokenizers import find_tokenizer, load_tokenizer, save_tokenizer
from .variants import find_network

__all__ = [
    "Checkpoint",
    "find_network",
    "find_tokenizer",
    "load_args",
    "load_model",
    "load_tokenizer",
    "open_checkpoint",
    "save_model",
    "save_tokenizer",
]
