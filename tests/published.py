"""Directories with the files of a tokenizer as published with each family; small vocabularies are trained here.

What matters is which file names which tokens: tokenizer.json, tokenizer.model, tokenizer_config.json,
special_tokens_map.json, added_tokens.json and generation_config.json.
"""

import json
from pathlib import Path

import pytest
from damage import change_json
from text_helpers import LLAMA2_SETTINGS, byte_level_tokenizer, trained_by_sentencepiece

from model.text.hf_tokenizer import hugging_face_files
from model.text.tokenizer import SentencePieceTokenizer

ENGLISH = "It was the best of times,\n\tit was the worst of times; in 1775 it was the age of wisdom.\n" * 40
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write(directory: Path, name: str, content: object) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(content), encoding="utf-8")


def token(content: str, **flags: bool) -> dict[str, object]:
    """An added token as tokenizer_config.json has it."""
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} | flags


def byte_level(
    directory: Path, special: list[str], others: list[str] | None = None, bos: str | None = None
) -> dict[str, dict[str, object]]:
    """Write a byte-level tokenizer.json, as Llama 3 and Qwen have; returns its added tokens as settings have them."""
    tokenizers = pytest.importorskip("tokenizers")
    made = byte_level_tokenizer(ENGLISH, 400)
    made.add_special_tokens(special)
    made.add_tokens(others or [])
    added = [*special, *(others or [])]
    made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    if bos:
        first = [(bos, made.token_to_id(bos))]
        made.post_processor = tokenizers.processors.TemplateProcessing(single=f"{bos} $A", special_tokens=first)
    directory.mkdir(exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    return {str(made.token_to_id(name)): token(name, special=name in special) for name in added}


def sentencepiece_model(directory: Path, **options: object) -> Path:
    """Write a tokenizer.model with Llama 2's settings."""
    file = trained_by_sentencepiece(directory, ENGLISH, **LLAMA2_SETTINGS, **options)
    file.with_suffix(".vocab").unlink()
    return file


def llama_2(directory: Path) -> None:
    file = sentencepiece_model(directory)
    write(directory, "tokenizer.json", hugging_face_files(SentencePieceTokenizer(file))[0])
    added = token("<s>") | {"__type": "AddedToken"}, token("</s>") | {"__type": "AddedToken"}
    config = {"add_bos_token": True, "bos_token": added[0], "eos_token": added[1]}
    write(directory, "tokenizer_config.json", config | {"legacy": False, "tokenizer_class": "LlamaTokenizer"})
    write(directory, "special_tokens_map.json", {"bos_token": token("<s>"), "eos_token": token("</s>")})
    write(directory, "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True})


def llama_3(directory: Path) -> None:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    added = byte_level(directory, names, bos=names[0])
    ends = {"bos_token": names[0], "eos_token": names[-1]}
    write(directory, "tokenizer_config.json", {"added_tokens_decoder": added, **ends})
    write(directory, "special_tokens_map.json", ends)
    ids = [int(number) for number in added]
    write(directory, "generation_config.json", {"eos_token_id": [ids[1], ids[4]], "temperature": 0.6})


# As in the tokenizer.json of Qwen2 and Qwen3
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen(directory: Path) -> None:
    added = byte_level(directory, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"])
    pattern = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split_then_bytes = {"type": "Sequence", "pretokenizers": [pattern, to_bytes]}
    change_json(directory / "tokenizer.json", normalizer={"type": "NFC"}, pre_tokenizer=split_then_bytes)
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None}
    config |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML}
    write(directory, "tokenizer_config.json", config | {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    ids = [int(number) for number in added]
    write(directory, "generation_config.json", {"bos_token_id": ids[0], "eos_token_id": [ids[2], ids[0]]})


def added_in_a_file_of_their_own(directory: Path) -> None:
    """added_tokens.json and special_tokens_map.json, as transformers 4.30 wrote them."""
    added = byte_level(directory, ["<s>", "</s>", "<|im_start|>", "<|im_end|>"], bos="<s>")
    write(directory, "added_tokens.json", {token["content"]: int(number) for number, token in added.items()})
    config = {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": "</s>", "bos_token": "<s>"}
    write(directory, "tokenizer_config.json", config | {"chat_template": CHATML})
    write(directory, "special_tokens_map.json", config | {"eos_token": "<|im_end|>"})


def without_bos(directory: Path) -> None:
    """A post-processor that adds nothing, although BOS has a name."""
    byte_level(directory, ["<s>", "</s>"])
    write(directory, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})


def in_the_vocabulary_only(directory: Path) -> None:
    """EOS is an ordinary piece of the vocabulary, which only special_tokens_map.json makes special."""
    byte_level(directory, [])
    content = json.loads((directory / "tokenizer.json").read_bytes())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {"<s>": len(vocabulary), "</s>": len(vocabulary) + 1}
    write(directory, "tokenizer.json", content)
    write(directory, "special_tokens_map.json", {"bos_token": "<s>", "eos_token": token("</s>")})
    write(directory, "tokenizer_config.json", {"model_max_length": 2048})


SHAPES = [llama_2, llama_3, qwen, added_in_a_file_of_their_own, without_bos, in_the_vocabulary_only]
