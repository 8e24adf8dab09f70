"""Tokenizers as published with each family: ids and ends are those of transformers, chats in tests/decoding."""

import pytest
import sentencepiece
from published import CHATML, SHAPES, byte_level, qwen, sentencepiece_model, token, write
from script_helpers import run_in_process

import generate as generate_script
from model import ModelArgs, Transformer
from model.decoding.chat import Chat
from model.text.hf_tokenizer import hugging_face_files
from model.text.tokenizer import SentencePieceTokenizer
from model.weights import load_tokenizer, save_model, save_tokenizer

TEXTS = ["", "it", " it was", "It was\n\nthe  best, 1775 ", "日本 🧵 cafe\u0301 ＡＢ", "it's O'Brien's;\r\n\tit"]


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_ids_and_ends_are_those_of_transformers(transformers, tmp_path, make):
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
        assert theirs.eos_token_id in ours.eos_ids
        assert load_tokenizer(directory).eos_ids == ours.eos_ids


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
    content = hugging_face_files(SentencePieceTokenizer(file))[0] | {"post_processor": None}
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
