"""A small instruct model in a cache that has the layout of the Hugging Face Hub's."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from text_helpers import byte_level_tokenizer

TEXT = "The rope is laid in the long lane. What is a rope? Three strands, twisted: that is a rope of hemp.\n" * 40
# SmolLM2-Instruct's
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
REVISION = "0123456789abcdef0123456789abcdef01234567"


def save_published(directory: Path) -> Any:
    """Save a random Llama and its tokenizer as transformers does; returns the network."""
    transformers = pytest.importorskip("transformers")
    import torch

    made = byte_level_tokenizer(TEXT, 400)
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<|endoftext|>", chat_template=TEMPLATE, **special
    )
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.3,
        rms_norm_eps=1e-5, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(config).eval()
    network.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return network


def put_into_cache(home: Path, name: str, published: Path) -> Path:
    """Copy a published model into the cache of the Hub below HF_HOME; returns its snapshot."""
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / REVISION
    if not snapshot.exists():
        shutil.copytree(published, snapshot)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(REVISION, encoding="utf-8")
    return snapshot
