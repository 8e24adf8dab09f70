"""Checkpoints on disk: run directories and other Hugging Face directories. convert.py knows two formats more.

checkpoint.py        opened weights, and a network from them; a Hugging Face directory: opened, loaded, saved
hub.py               models of the Hugging Face Hub by their id
hf_config.py         config.json <-> ModelArgs
layout.py            names and shapes of the tensors, and why query and key rows are permuted
tensors.py           files of tensors: safetensors, and PyTorch's pickles
variants.py          subclasses of the network, saved under their class name
tokenizers.py        the tokenizer of a checkpoint
meta.py              Meta's directories, for convert.py
llama2c.py           llama2.c's .bin files, for convert.py
"""

from .checkpoint import Checkpoint, load_model, open_checkpoint, save_model
from .tokenizers import load_tokenizer, save_tokenizer
from .variants import find_network

__all__ = [
    "Checkpoint",
    "find_network",
    "load_model",
    "load_tokenizer",
    "open_checkpoint",
    "save_model",
    "save_tokenizer",
]
