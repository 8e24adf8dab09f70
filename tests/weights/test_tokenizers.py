"""The tokenizer of a checkpoint: found, checked, and saved so that transformers and llama2.c encode alike."""

import json
import random
import re
import shutil
from contextlib import nullcontext

import pytest
from damage import change_json
from text_helpers import trained_by_sentencepiece

from model.decoding.chat import Chat
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_tokenizer, save_tokenizer
from model.weights.tokenizers import check_size

TEXT = "".join(f"def f{i}(self):\n    return {i}  # the ropewalk, day {i}\n\n\n" for i in range(400))
SAMPLES = [
    "", " ", "  two", " lead", "trail  ", "a\n\n\nb", "\n\n\n\n", "\t\tx\r\ny", "日本語 🧵 émile", "\x01\x7f",
    "a       b", "ropewalk" * 20, TEXT[:3000],
]  # fmt: skip


@pytest.fixture(scope="module", params=["bpe", "char"])
def trained(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    train_tokenizer([TEXT], directory, request.param, 330)
    save_tokenizer(load_tokenizer(directory), directory / "run")
    return directory / "run"


def test_transformers_encodes_and_decodes_as_we_do(transformers, trained, tmp_path):
    # AutoTokenizer needs the model's configuration.
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}), encoding="utf-8"
    )
    ours, theirs = load_tokenizer(run), transformers.AutoTokenizer.from_pretrained(run)
    chance = random.Random(0)
    words = ["".join(chance.choice(" \n\tdefr1(") for _ in range(100)) for _ in range(50)]
    punctuation = "We 've seen this , too . Did n't you ?"  # transformers may be told to remove these spaces
    for text in [*SAMPLES, *words, punctuation]:
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == ids, text
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids) == text
    ids = (theirs.unk_token_id, theirs.bos_token_id, theirs.eos_token_id)
    assert (len(theirs), ids) == (ours.vocab_size, (0, 1, 2))
    config = json.loads((run / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["add_prefix_space"] is False, "llama.cpp's converter reads it, and its default is true"


@pytest.mark.parametrize("content", [{}, {"model": {"type": "Rope", "vocab": {}}}], ids=["damaged", "newer"])
def test_a_tokenizer_json_that_the_library_cannot_read_says_what_to_do(tmp_path, content):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", **content}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"is damaged, or newer than tokenizers .*`pip install --upgrade tokenizers`"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("form", ["tokenizer.model", "tokenizer.json"])
@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja"])
def test_the_chat_template_is_saved_with_the_tokenizer(trained, tmp_path, form, place):
    template = "{% for message in messages %}{{ bos_token }}{{ message.content }}\n{% endfor %}"
    source = shutil.copytree(trained, tmp_path / "source")
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    if form == "tokenizer.json":
        (source / "tokenizer.model").unlink()
    if place == "chat_template.jinja":
        (source / place).write_text(template, encoding="utf-8")
    else:
        change_json(source / place, chat_template=template)
    save_tokenizer(load_tokenizer(source), tmp_path / "target")
    for directory in (source, tmp_path / "target"):
        tokenizer = load_tokenizer(directory)
        chat = Chat(directory, tokenizer)
        ids = chat.encode([{"role": "user", "content": "return 1"}])
        assert ids == tokenizer.encode("return 1\n")
    saved = json.loads((tmp_path / "target" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert saved == config | ({"chat_template": template} if place == "tokenizer_config.json" else {})


def test_a_unigram_tokenizer_gets_no_tokenizer_json(tmp_path):
    file = trained_by_sentencepiece(tmp_path, TEXT, vocab_size=60, model_type="unigram")
    save_tokenizer(load_tokenizer(file), tmp_path / "run")
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["generation_config.json", "tokenizer.model"]


def test_end_ids_are_read_from_the_configurations(trained, tmp_path):
    shutil.copy(trained / "tokenizer.model", tmp_path)
    assert load_tokenizer(tmp_path).eos_ids == (2, 1), "those of the tokenizer"
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}', encoding="utf-8")
    for ids, expected in (("[8, 9]", (8, 9)), ("null", (7,))):
        (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}', encoding="utf-8")
        assert load_tokenizer(tmp_path).eos_ids == expected
    for ids in ('"</s>"', "[[7]]", "true", "{}"):
        (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}', encoding="utf-8")
        with pytest.raises(ValueError, match=r"eos_token_id is .*: a token id or a list of them is needed$"):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("form", "tokens", "rows", "fits"),
    [
        ("model", 300, 300, True), ("model", 300, 299, False), ("model", 300, 301, False),
        ("json", 300, 427, True), ("json", 300, 428, False),
        ("json", 151_665, 152_064, True), ("json", 100_015, 102_400, True),  # Qwen2.5, DeepSeek-LLM
        ("json", 100_015, 105_000, False),
    ],
)  # fmt: skip
def test_only_a_tokenizer_json_may_have_fewer_tokens_than_the_model(trained, form, tokens, rows, fits):
    if form == "json":
        pytest.importorskip("tokenizers")
    tokenizer = load_tokenizer(trained / f"tokenizer.{form}")
    tokenizer.vocab_size = tokens
    with nullcontext() if fits else pytest.raises(ValueError, match=f"{tokens} tokens, the model {rows}"):
        check_size(tokenizer, rows, tokenizer.path)


def add_tokens(directory, *names, special=True):
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.add_special_tokens([*names]) if special else library.add_tokens([*names])
    library.save(str(directory / "tokenizer.json"))


@pytest.mark.parametrize(("names", "special"), [(["[PAD]"], True), (["[PAD]", "<|im_start|>", "<think>"], False)])
def test_tokens_that_were_added_for_a_larger_network_are_refused_only_where_they_are_used(
    trained, tmp_path, names, special
):
    run = shutil.copytree(trained, tmp_path / "run")
    rows = load_tokenizer(run).vocab_size
    (run / "tokenizer.model").unlink()
    add_tokens(run, *names, special=special)
    change_json(run / "generation_config.json", eos_token_id=[2, rows])
    tokenizer, whole = load_tokenizer(run, rows), load_tokenizer(run)
    assert (tokenizer.vocab_size, whole.vocab_size) == (rows, rows + len(names))
    assert tokenizer.eos_ids == (2,), "a token that the network cannot write ends no text"
    for text in SAMPLES:
        assert tokenizer.encode(text) == whole.encode(text)
    for name in names:
        complaint = rf"the text has {re.escape(name)}, token \d+ of .*json, but the vocabulary of the model ends at"
        for encode in (tokenizer.encode, tokenizer.encode_control, lambda text: tokenizer.encode_batch(["", text])):
            with pytest.raises(ValueError, match=complaint):
                encode(f"day 1{name}")
    with pytest.raises(
        ValueError, match=f"has {rows + len(names)} tokens, the model {rows - 1}: give the tokenizer of"
    ):
        load_tokenizer(run, rows - 1)


def test_added_tokens_that_the_network_lacks_do_not_refuse_a_sentencepiece_model(trained, tmp_path):
    """[PAD] in added_tokens.json, as fine-tunings of the first Llama have it."""
    shutil.copy(trained / "tokenizer.model", tmp_path)
    rows = load_tokenizer(tmp_path).vocab_size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": rows}), encoding="utf-8")
    assert load_tokenizer(tmp_path, rows).vocab_size == rows
    with pytest.raises(ValueError, match=r"lacks the added tokens \[PAD\]"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("letters", ["ACGT", "0123456789", " \u0120AC"])
@pytest.mark.parametrize("with_bos", [True, False])
def test_a_tokenizer_that_does_not_know_the_letter_a_is_read(transformers, tmp_path, letters, with_bos):
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    text = "".join(random.Random(0).choices(letters, k=500))
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=30, special_tokens=["<s>", "</s>"], show_progress=False)
    library.train_from_iterator([text], trainer)
    if with_bos:
        start = tokenizers.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
        library.post_processor = start
    library.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode(text) == [token for token in theirs(text)["input_ids"] if token != 1]
    assert tokenizer.encode(text)[:1] == ([0] if with_bos else tokenizer.encode_batch([text])[0][:1])


def test_added_tokens_make_tokenizer_json_the_preferred_file(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    tokenizer = load_tokenizer(run)
    assert tokenizer.path.name == "tokenizer.model"
    size = tokenizer.vocab_size
    (run / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size, "<s>": 1}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"lacks the added tokens <\|im_end\|>: give the tokenizer.json of this model"):
        load_tokenizer(run / "tokenizer.model")
    add_tokens(run, "<|im_end|>")
    assert load_tokenizer(run).encode("<|im_end|>") == [1, size]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "tokenizer.model",
            b"IQ== 0\nIg== 1\n",
            "is a file of tiktoken, which is not read: give the tokenizer.json of",
        ),
        ("tokenizer.bin", b"123", "not a SentencePiece model: give one, or a tokenizer"),  # llama2.c's
        ("tokenizer.model", b"", "not a SentencePiece model: give one, or a tokenizer"),
        (".", None, "has no tokenizer"),
        ("none.model", None, "none.model is not a file"),
    ],
)
def test_a_file_that_is_not_a_tokenizer_is_an_error(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        load_tokenizer(tmp_path / name)
