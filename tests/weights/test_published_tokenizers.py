"""The files of a tokenizer as published with each family: ids, chats and ends are those of transformers.

The vocabularies are small and trained here. What matters is which file names which tokens: tokenizer.json,
tokenizer.model, tokenizer_config.json, special_tokens_map.json, added_tokens.json and generation_config.json.
"""

import json
from pathlib import Path

import pytest
import sentencepiece
from damage import change_json
from script_helpers import run_in_process
from text_helpers import LLAMA2_SETTINGS, byte_level_tokenizer

import generate as generate_script
from model import ModelArgs, Transformer
from model.decoding.chat import Chat
from model.text.hf_tokenizer import hugging_face_files
from model.weights import load_tokenizer, save_model, save_tokenizer

ENGLISH = "It was the best of times,\n\tit was the worst of times; in 1775 it was the age of wisdom.\n" * 40
TEXTS = ["", "it", " it was", "It was\n\nthe  best, 1775 ", "日本 🧵 cafe\u0301 ＡＢ", "it's O'Brien's;\r\n\tit"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TALK = [
    {"role": "user", "content": "was it"}, {"role": "assistant", "content": "it was"},
    {"role": "user", "content": "the best"},
]  # fmt: skip


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
    directory.mkdir(exist_ok=True)
    settings = {**LLAMA2_SETTINGS, "hard_vocab_limit": False, "minloglevel": 2, **options}
    lines, prefix = iter(ENGLISH.splitlines()), str(directory / "tokenizer")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_prefix=prefix, **settings)
    (directory / "tokenizer.vocab").unlink()
    return directory / "tokenizer.model"


def llama_2(directory: Path) -> None:
    file = sentencepiece_model(directory)
    write(directory, "tokenizer.json", hugging_face_files(file)[0])
    added = token("<s>") | {"__type": "AddedToken"}, token("</s>") | {"__type": "AddedToken"}
    config = {"add_bos_token": True, "bos_token": added[0], "eos_token": added[1], "chat_template": ZEPHYR}
    write(directory, "tokenizer_config.json", config | {"legacy": False, "tokenizer_class": "LlamaTokenizer"})
    write(directory, "special_tokens_map.json", {"bos_token": token("<s>"), "eos_token": token("</s>")})
    write(directory, "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True})


def llama_3(directory: Path) -> None:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    added = byte_level(directory, names, bos=names[0])
    ends = {"bos_token": names[0], "eos_token": names[-1]}
    write(directory, "tokenizer_config.json", {"added_tokens_decoder": added, **ends, "chat_template": ZEPHYR})
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
    write(directory, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "chat_template": ZEPHYR})


def in_the_vocabulary_only(directory: Path) -> None:
    """EOS is an ordinary piece of the vocabulary, which only special_tokens_map.json makes special."""
    byte_level(directory, [])
    content = json.loads((directory / "tokenizer.json").read_bytes())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {"<s>": len(vocabulary), "</s>": len(vocabulary) + 1}
    write(directory, "tokenizer.json", content)
    write(directory, "special_tokens_map.json", {"bos_token": "<s>", "eos_token": token("</s>")})
    write(directory, "tokenizer_config.json", {"model_max_length": 2048, "chat_template": ZEPHYR})


SHAPES = [llama_2, llama_3, qwen, added_in_a_file_of_their_own, without_bos, in_the_vocabulary_only]


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_ids_chats_and_ends_are_those_of_transformers(transformers, tmp_path, make):
    directory = tmp_path / "model"
    make(directory)
    write(directory, "config.json", {"model_type": "llama", "vocab_size": 512})
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    names = [name for name in theirs.get_added_vocab() if name not in ("<unk>",)]
    save_tokenizer(load_tokenizer(directory), tmp_path / "copy")
    for place in (directory, tmp_path / "copy"):
        ours = load_tokenizer(place)
        for text in [*TEXTS, *names, f"it{names[0]}was{names[-1]}"]:
            ids = theirs(text)["input_ids"]
            # Transformers 5 leaves out the space that SentencePiece puts before a text, if the text begins with one.
            if not (ours.adds_space and (text.startswith(" ") or text not in TEXTS)):
                assert ours.encode(text) == (ids or [ours.bos_id]), text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        if not ours.adds_space:  # with it, transformers 5 differs from Meta's code: tests/decoding/test_chat.py
            expected = theirs.apply_chat_template(TALK, add_generation_prompt=True, tokenize=True)["input_ids"]
            assert Chat(place, ours).encode(TALK) == expected
        assert theirs.eos_token_id in ours.eos_ids
        assert load_tokenizer(directory).eos_ids == ours.eos_ids


def test_a_tokenizer_of_qwens_kind_ends_with_either_token_and_begins_an_empty_text_with_one(tmp_path):
    qwen(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    end, turn_end = (tokenizer.control_tokens("")[name] for name in ("<|endoftext|>", "<|im_end|>"))
    assert tokenizer.eos_ids == (turn_end, end)
    assert tokenizer.encode("") == [turn_end], "there is no BOS"


@pytest.mark.parametrize("flags", [("--chat",), ("--dtype", "int8", "--endless")], ids=" ".join)
def test_generate_py_opens_a_qwen(tmp_path, capsys, flags):
    qwen(tmp_path)
    size = load_tokenizer(tmp_path).vocab_size
    model = Transformer(ModelArgs(dim=32, n_layers=1, n_heads=2, vocab_size=size + 100, qkv_bias=True))
    model.output.weight.data[size:] = 0  # logits of rows without a token
    save_model(model, tmp_path)
    flags = (*flags, "--prompt", "it was", "--max_new_tokens", 12, "--seed", 1)
    assert run_in_process(generate_script.main, "generate.py", tmp_path, *flags) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()


# ---- tokenizer.model


def test_a_tokenizer_model_with_tokens_for_chat_and_without_bos_gives_way_to_tokenizer_json(tmp_path):
    """As Yi's, whose <|im_start|> and <|im_end|> are user-defined pieces."""
    file = sentencepiece_model(tmp_path, user_defined_symbols=["<|im_start|>", "<|im_end|>"], add_dummy_prefix=False)
    template = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHATML}
    write(tmp_path, "tokenizer_config.json", template)
    with pytest.raises(ValueError, match=r"has user-defined pieces: for a chat, give the tokenizer\.json"):
        Chat(tmp_path, load_tokenizer(file))
    write(tmp_path, "tokenizer_config.json", template | {"add_bos_token": False})
    with pytest.raises(ValueError, match=r"texts begin without BOS: give its tokenizer\.json"):
        load_tokenizer(tmp_path)
    content = hugging_face_files(file)[0] | {"post_processor": None}
    write(tmp_path, "tokenizer.json", content)
    tokenizer = load_tokenizer(tmp_path)
    library = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for text in TEXTS[1:]:
        assert tokenizer.encode(text) == library.encode(text)


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        ({"7": token("</s>")}, r"the token '</s>' the id \d+, but tokenizer_config.json .* 7: get"),
        (7, "added tokens are not valid"),
        ({"x": {"content": "a"}}, "added tokens are not valid"),
        ({"1": 2}, "added tokens are not valid"),
    ],
)
def test_added_tokens_with_other_ids_or_of_another_form_are_an_error(tmp_path, decoder, words):
    byte_level(tmp_path, ["<s>", "</s>"])
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "added_tokens_decoder": decoder})
    with pytest.raises(ValueError, match=words):
        load_tokenizer(tmp_path)
