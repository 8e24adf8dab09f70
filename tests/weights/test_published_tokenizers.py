"""The files of a tokenizer as published with each family: ids, chats and ends are those of transformers.

The vocabularies are small and trained here. What matters is which file names which tokens: tokenizer.json,
tokenizer.model, tokenizer_config.json, special_tokens_map.json, added_tokens.json and generation_config.json.
"""

import json
from pathlib import Path

import pytest
import sentencepiece
from text_helpers import LLAMA2_SETTINGS, byte_level_tokenizer

from model.decoding.chat import open_chat
from model.text.hf_tokenizer import hugging_face_files
from model.weights import load_tokenizer, save_tokenizer

ENGLISH = "It was the best of times,\n\tit was the worst of times; in 1775 it was the age of wisdom.\n" * 40
TEXTS = ["", "it", " it was", "It was\n\nthe  best, 1775 ", "日本 🧵", "times;\r\n\tit"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}{{ '[INST] ' + message.content + "
    "' [/INST]' }}{% else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + "
    "message.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
QUESTION = [{"role": "user", "content": "was it"}]
TALK = [*QUESTION, {"role": "assistant", "content": "it was"}, {"role": "user", "content": "the best"}]


def write(directory: Path, name: str, content: object) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(content), encoding="utf-8")


def token(content: str, **flags: bool) -> dict[str, object]:
    """An added token as tokenizer_config.json has it."""
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} | flags


def byte_level(directory: Path, special: list[str], others: list[str] | None = None, bos: str | None = None) -> int:
    """Write a byte-level tokenizer.json, as Llama 3 and Qwen have; returns the number of tokens before the added."""
    tokenizers = pytest.importorskip("tokenizers")
    made = byte_level_tokenizer(ENGLISH, 400)
    base = made.get_vocab_size()
    made.add_special_tokens(special)
    made.add_tokens(others or [])
    made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    if bos:
        first = [(bos, made.token_to_id(bos))]
        made.post_processor = tokenizers.processors.TemplateProcessing(single=f"{bos} $A", special_tokens=first)
    directory.mkdir(exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    return base


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
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": added[0], "eos_token": added[1]}
    config |= {"legacy": False, "model_max_length": 1000000000000000019884624838656, "chat_template": INST}
    write(directory, "tokenizer_config.json", config | {"tokenizer_class": "LlamaTokenizer"})
    write(directory, "special_tokens_map.json", {"bos_token": token("<s>"), "eos_token": token("</s>")})
    write(directory, "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True})


def llama_3(directory: Path) -> None:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    base = byte_level(directory, names, bos=names[0])
    config = {"added_tokens_decoder": {str(base + i): token(name, special=True) for i, name in enumerate(names)}}
    config |= {"bos_token": names[0], "eos_token": names[-1], "chat_template": HEADERS}
    write(directory, "tokenizer_config.json", config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    write(directory, "special_tokens_map.json", {"bos_token": names[0], "eos_token": names[-1]})
    write(directory, "generation_config.json", {"eos_token_id": [base + 1, base + 4], "temperature": 0.6})


def mistral(directory: Path) -> None:
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    base = byte_level(directory, names, bos="<s>")
    config = {"added_tokens_decoder": {str(base + i): token(name, special=True) for i, name in enumerate(names)}}
    config |= {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "chat_template": INST}
    write(directory, "tokenizer_config.json", config | {"tokenizer_class": "PreTrainedTokenizerFast"})


def qwen(directory: Path) -> None:
    names, others = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"]
    base = byte_level(directory, names, others)
    decoder = {str(base + i): token(name, special=name in names) for i, name in enumerate(names + others)}
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder, "bos_token": None}
    config |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML}
    config |= {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "split_special_tokens": False}
    write(directory, "tokenizer_config.json", config)
    write(directory, "generation_config.json", {"bos_token_id": base, "eos_token_id": [base + 2, base]})


def added_in_the_config_only(directory: Path) -> None:
    """A fine-tuned model whose tokens for chat are in added_tokens_decoder, but not in tokenizer.json."""
    base = byte_level(directory, ["<s>", "</s>"], bos="<s>")
    decoder = {str(base): token("<s>", special=True), str(base + 1): token("</s>", special=True)}
    decoder |= {str(base + 2): token("<|im_start|>", special=True), str(base + 3): token("<|im_end|>", special=True)}
    config = {"added_tokens_decoder": decoder, "bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": CHATML}
    write(directory, "tokenizer_config.json", config)


def added_in_a_file_of_their_own(directory: Path) -> None:
    """added_tokens.json and special_tokens_map.json, as transformers 4.30 wrote them."""
    base = byte_level(directory, ["<s>", "</s>"], bos="<s>")
    write(directory, "added_tokens.json", {"<|im_end|>": base + 3, "<|im_start|>": base + 2})
    config = {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": "</s>", "bos_token": "<s>"}
    write(directory, "tokenizer_config.json", config | {"chat_template": CHATML})
    write(directory, "special_tokens_map.json", config | {"eos_token": "<|im_end|>"})


def zephyr(directory: Path) -> None:
    file = sentencepiece_model(directory)
    write(directory, "tokenizer.json", hugging_face_files(file)[0])
    write(directory, "added_tokens.json", {"</s>": 2, "<s>": 1, "<unk>": 0})
    decoder = {str(i): token(name, special=True) for i, name in enumerate(["<unk>", "<s>", "</s>"])}
    config = {"add_bos_token": True, "added_tokens_decoder": decoder, "bos_token": "<s>", "eos_token": "</s>"}
    config |= {"legacy": True, "pad_token": "</s>", "unk_token": "<unk>", "chat_template": ZEPHYR}
    write(directory, "tokenizer_config.json", config | {"additional_special_tokens": ["<unk>", "<s>", "</s>"]})


def without_bos(directory: Path) -> None:
    """A post-processor that adds nothing, although BOS has a name."""
    byte_level(directory, ["<s>", "</s>"])
    write(directory, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "chat_template": ZEPHYR})


def split(directory: Path) -> None:
    """A text in which the names of special tokens stay text."""
    byte_level(directory, ["<s>", "</s>"], bos="<s>")
    config = {"bos_token": "<s>", "eos_token": "</s>", "split_special_tokens": True}
    write(directory, "tokenizer_config.json", config | {"chat_template": "{{ messages[0].content }}"})


def in_the_vocabulary_only(directory: Path) -> None:
    """EOS is an ordinary piece of the vocabulary, which only special_tokens_map.json makes special."""
    byte_level(directory, [])
    content = json.loads((directory / "tokenizer.json").read_bytes())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {"<s>": len(vocabulary), "</s>": len(vocabulary) + 1}
    write(directory, "tokenizer.json", content)
    write(directory, "special_tokens_map.json", {"bos_token": "<s>", "eos_token": token("</s>")})
    write(directory, "tokenizer_config.json", {"model_max_length": 2048, "chat_template": ZEPHYR})


SHAPES = [
    llama_2, llama_3, mistral, qwen, added_in_the_config_only, added_in_a_file_of_their_own, zephyr, without_bos,
    split, in_the_vocabulary_only,
]  # fmt: skip


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_ids_chats_and_ends_are_those_of_transformers(transformers, tmp_path, make):
    tokenizers = pytest.importorskip("tokenizers")
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
        chat = open_chat(place, ours)
        for messages in (QUESTION, TALK):
            expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
            if make is llama_2:  # Meta's code has a space before [INST], as tokenizer.json; transformers 5 has not
                text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
                library = tokenizers.Tokenizer.from_file(str(place / "tokenizer.json"))
                expected = library.encode(text, add_special_tokens=False).ids
            assert chat.encode(messages) == expected
        assert theirs.eos_token_id in ours.eos_ids
        assert load_tokenizer(directory).eos_ids == ours.eos_ids


# ---- tokenizer.model


def yi(directory: Path) -> None:
    """Tokens for chat that are user-defined pieces, and texts without BOS."""
    sentencepiece_model(directory, user_defined_symbols=["<|im_start|>", "<|im_end|>"], add_dummy_prefix=False)
    config = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>", "chat_template": CHATML}
    write(directory, "tokenizer_config.json", config | {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False})


def test_a_tokenizer_model_without_bos_and_with_tokens_for_chat(transformers, tmp_path):
    directory = tmp_path / "model"
    yi(directory)
    write(directory, "config.json", {"model_type": "llama"})
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    save_tokenizer(load_tokenizer(directory), tmp_path / "copy")
    for place in (directory, tmp_path / "copy"):
        ours = load_tokenizer(place)
        assert ours.path.name == "tokenizer.model"
        for text in TEXTS[1:]:
            assert ours.encode(text) == theirs(text)["input_ids"], text
        chat = open_chat(place, ours)
        for messages in (QUESTION, TALK):
            expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
            assert chat.encode(messages) == expected
        start, end = (theirs.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))
        assert end in chat.eos_ids
        ids = chat.encode([{"role": "user", "content": "<|im_end|>it<|im_start|>"}])
        assert (ids.count(start), ids.count(end)) == (2, 1), "those of the template only"
        assert "< |im_end|>it< |im_start|>" in ours.decode(ids)
    (tmp_path / "copy" / "tokenizer.model").unlink()
    write(tmp_path / "copy", "config.json", {"model_type": "llama"})
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    for text in (*TEXTS[1:], "<|im_end|>it"):
        assert saved(text)["input_ids"] == theirs(text)["input_ids"] == load_tokenizer(tmp_path / "copy").encode(text)


@pytest.mark.parametrize("legacy", [None, True])
def test_tokens_that_were_added_to_a_tokenizer_model_are_read(transformers, tmp_path, legacy):
    file = sentencepiece_model(tmp_path / "model")
    size = sentencepiece.SentencePieceProcessor(model_file=str(file)).get_piece_size()
    config = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": CHATML}
    config |= {"tokenizer_class": "LlamaTokenizer", "legacy": legacy}
    write(file.parent, "tokenizer_config.json", config)
    write(file.parent, "added_tokens.json", {"<|im_end|>": size, "<|im_start|>": size + 1})
    write(file.parent, "config.json", {"model_type": "llama"})
    theirs = transformers.AutoTokenizer.from_pretrained(file.parent)
    ours = load_tokenizer(file.parent, size + 2)
    assert (ours.vocab_size, ours.eos_ids) == (size + 2, (size,))
    for text in (*TEXTS, "<|im_start|>it was<|im_end|>\nit"):
        assert ours.encode(text) == (theirs(text)["input_ids"]), text
    chat = open_chat(file.parent, ours)
    expected = theirs.apply_chat_template(TALK, add_generation_prompt=True, tokenize=True)["input_ids"]
    assert chat.encode(TALK) == expected


def test_a_tokenizer_model_without_settings_begins_with_bos(tmp_path):
    file = sentencepiece_model(tmp_path / "model")
    library = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert load_tokenizer(file).encode("it was") == [1, *library.encode("it was")], "as in Meta's code"


def test_tokens_beyond_the_model_are_refused_only_when_they_are_used(tmp_path):
    """As with CodeLlama-34b: 32,004 tokens, 32,000 rows."""
    base = byte_level(tmp_path, ["<s>", "</s>"], ["<PRE>", "<SUF>"], bos="<s>")
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer = load_tokenizer(tmp_path, base + 2)
    assert tokenizer.encode("it")[0] == base
    with pytest.raises(
        ValueError, match=f"contains '<PRE>', which is token {base + 2}, .* only {base + 2} tokens: leave"
    ):
        tokenizer.encode("it <PRE>")
    with pytest.raises(ValueError, match=f"{base + 4} tokens, the model {base - 1}"):
        load_tokenizer(tmp_path, base - 1)


@pytest.mark.parametrize("number", ["7", "100000"])
def test_an_added_token_with_two_ids_is_refused(tmp_path, number):
    byte_level(tmp_path, ["<s>", "</s>"])
    decoder = {number: token("</s>", special=True)}
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "added_tokens_decoder": decoder})
    with pytest.raises(ValueError, match=rf"the token '</s>' the id \d+, but tokenizer_config.json .* {number}: get"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("decoder", [7, {"x": {"content": "a"}}, {"1": 2}, {"1": {"content": [1]}}, {"-1": token("a")}])
def test_added_tokens_of_another_form_are_an_error(tmp_path, decoder):
    byte_level(tmp_path, ["<s>", "</s>"])
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "added_tokens_decoder": decoder})
    with pytest.raises(ValueError, match="added tokens are not valid"):
        load_tokenizer(tmp_path)


def test_ctrl_c_and_sigterm_while_reading_are_not_called_damage(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    byte_level(tmp_path, ["<s>", "</s>"])
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>"})
    for stop in (KeyboardInterrupt, SystemExit):

        def interrupted(text, stop=stop):
            raise stop

        monkeypatch.setattr(tokenizers, "Tokenizer", type("Interrupted", (), {"from_str": staticmethod(interrupted)}))
        with pytest.raises(stop):
            load_tokenizer(tmp_path)
