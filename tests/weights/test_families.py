"""Mistral, Qwen2 and Qwen3, with transformers as the oracle and random weights, and a tokenizer of Qwen's kind."""

import json
import shutil

import pytest
import torch
from damage import change_json
from script_helpers import run_in_process
from text_helpers import byte_level_tokenizer

import generate as generate_script
from model import KVCache, ModelArgs, Transformer, generate
from model.weights import load_model, load_tokenizer, save_model, save_tokenizer
from model.weights.tensors import load_tensors
from model.weights.tokenizers import check_size

CONTEXT = 64
SIZES = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 37, "max_position_embeddings": CONTEXT, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e6}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
CONFIGS = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "llama3": ("Llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}),
    "llama yarn": ("Llama", {"rope_parameters": {**YARN, "beta_fast": 8, "beta_slow": 1, "attention_factor": 0.8}}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 10}),
    "mistral with a window": ("Mistral", {"sliding_window": CONTEXT}),
    "qwen2": ("Qwen2", {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 1}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3 tied": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}
WRITTEN = {"Llama": "llama", "Mistral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3"}


def saved_by_transformers(transformers, directory, family, **changes):
    """A model in float32 whose biases and norms are random, too. Returns it, and writes its directory."""
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SIZES | changes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
            elif weight.ndim == 1:
                weight.uniform_(0.5, 1.5)
    model.eval().save_pretrained(directory)
    return model


def greedy_text(theirs, prompt, count):
    ids = torch.tensor([prompt])
    text = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return text[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("family", "changes"), CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_logits_and_greedy_text_equal_those_of_transformers(transformers, tmp_path, family, changes):
    theirs = saved_by_transformers(transformers, tmp_path, family, **changes)
    ours = load_model(tmp_path)
    tokens = torch.randint(37, (2, CONTEXT))
    expected = theirs(tokens).logits
    logits = ours(tokens)
    assert (logits - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
    cache = KVCache(ours.args, 2)
    steps = [ours(tokens[:, start:end], start, cache) for start, end in ((0, 20), (20, 21), (21, 22), (22, CONTEXT))]
    assert (torch.cat(steps, 1) - logits).abs().max() <= 1e-5 * (expected.max() - expected.min())
    prompt = [3, 1, 4]
    assert [token for (token,) in generate(ours, [prompt], max_new_tokens=50)] == greedy_text(theirs, prompt, 50)


@pytest.mark.parametrize(("family", "changes"), CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_round_trip_keeps_every_byte_and_the_family(transformers, tmp_path, family, changes, dtype):
    saved_by_transformers(transformers, tmp_path / "theirs", family, **changes)
    save_model(load_model(tmp_path / "theirs"), tmp_path / "once", dtype=dtype)
    save_model(load_model(tmp_path / "once", dtype="stored"), tmp_path / "twice")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    originals = load_tensors(tmp_path / "theirs" / "model.safetensors")
    written = load_tensors(tmp_path / "once" / "model.safetensors")
    assert written.keys() == originals.keys()
    assert all(torch.equal(written[name], tensor.to(dtype)) for name, tensor in originals.items())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "once", dtype=torch.float32)
    assert again.config.model_type == WRITTEN[family]
    tokens = torch.randint(37, (1, CONTEXT))
    expected = again(tokens).logits
    assert (load_model(tmp_path / "once")(tokens) - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_shards_in_half_precision_load_with_equal_logits(transformers, tmp_path, dtype):
    saved = saved_by_transformers(transformers, tmp_path / "float32", "Llama")
    saved.to(dtype).save_pretrained(tmp_path / "shards", max_shard_size="20kB")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "shards", dtype=torch.float32)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    tokens = torch.randint(37, (1, CONTEXT))
    expected = theirs(tokens).logits
    logits = load_model(tmp_path / "shards")(tokens)
    assert (logits - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
    assert {p.dtype for p in load_model(tmp_path / "shards", dtype="stored").parameters()} == {dtype}


@pytest.mark.parametrize(
    ("family", "changes"), [("Mistral", {}), ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1})]
)
@torch.no_grad()
def test_a_context_limited_to_the_sliding_window_gives_equal_logits(transformers, tmp_path, family, changes):
    theirs = saved_by_transformers(transformers, tmp_path, family, sliding_window=16, **changes)
    with pytest.warns(UserWarning, match="the context is 16, not 64"):
        ours = load_model(tmp_path)
    tokens = torch.randint(37, (1, 17))
    expected = theirs(tokens[:, :16]).logits
    assert (ours(tokens[:, :16]) - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
    with pytest.raises(ValueError, match="within the 16 positions"):
        ours(tokens)


TEMPLATE = r"""
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
# As in the tokenizer.json of Qwen2 and Qwen3
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["", " ", "the rope", "it's  O'Brien's\n\n\n 12345 ropes\r\n", "\tx  \n y", "<|im_end|> no"]
TEXTS += ["日本語 🧵 cafe\u0301 ＡＢ"]


@pytest.fixture(scope="module")
def qwen_tokenizer(tmp_path_factory):
    """A directory with a tokenizer of Qwen's kind: byte-level BPE, NFC, added tokens, no BOS."""
    tokenizers = pytest.importorskip("tokenizers")
    directory = tmp_path_factory.mktemp("qwen")
    tokenizer = byte_level_tokenizer("the ropewalk is a long lane where rope is laid. It's café 12.\n\n" * 50, 400)
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated")
    to_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in CONTROL])
    tokenizer.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "add_prefix_space": False, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    end, _, turn_end = (tokenizer.token_to_id(name) for name in CONTROL)
    ids = {"bos_token_id": end, "eos_token_id": [turn_end, end]}
    (directory / "generation_config.json").write_text(json.dumps(ids), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def qwen(qwen_tokenizer, transformers, tmp_path_factory):
    """A Qwen2 directory with that tokenizer, and ``transformers``' tokenizer."""
    directory = tmp_path_factory.mktemp("model") / "qwen"
    shutil.copytree(qwen_tokenizer, directory)
    size = load_tokenizer(directory).vocab_size + 100
    model = Transformer(ModelArgs(dim=32, n_layers=1, n_heads=2, vocab_size=size, max_seq_len=128, qkv_bias=True))
    with torch.no_grad():
        model.output.weight[size - 100 :] = 0  # logits of rows without a token
    save_model(model, directory)
    return directory, transformers.AutoTokenizer.from_pretrained(directory)


def test_a_tokenizer_of_qwens_kind_and_its_copy_encode_as_transformers_does(qwen, tmp_path):
    directory, theirs = qwen
    end, _, turn_end = (theirs.convert_tokens_to_ids(name) for name in CONTROL)
    save_tokenizer(load_tokenizer(directory), tmp_path / "copy")
    shutil.copytree(directory, tmp_path / "unprocessed")
    change_json(tmp_path / "unprocessed" / "tokenizer.json", post_processor=None)
    for place in (directory, tmp_path / "copy", tmp_path / "unprocessed"):
        ours = load_tokenizer(place)
        assert ours.eos_ids == (turn_end, end)
        assert ours.bos_id == turn_end, "an empty text begins with EOS, because there is no BOS"
        for text in TEXTS:
            ids = theirs(text)["input_ids"]
            assert ours.encode(text) == (ids or [ours.bos_id]), text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


PADDED = {  # tokens and rows
    "Qwen2.5": (151_665, 152_064), "DeepSeek-LLM": (100_015, 102_400), "deepseek-coder": (32_022, 32_256),
    "Megrez": (120_026, 122_880), "not padded": (65_000, 65_000),
}  # fmt: skip


@pytest.mark.parametrize(("tokens", "rows"), PADDED.values(), ids=PADDED)
def test_a_vocabulary_may_be_padded_by_some_percent(qwen_tokenizer, tokens, rows):
    tokenizer = load_tokenizer(qwen_tokenizer)
    tokenizer.vocab_size = tokens
    check_size(tokenizer, rows, tokenizer.path)
    for wrong in (tokens + tokens // 20, tokens - 1):
        with pytest.raises(ValueError, match=f"{tokens} tokens, the model {wrong}"):
            check_size(tokenizer, wrong, tokenizer.path)


@pytest.mark.parametrize("flags", [(), ("--chat",), ("--dtype", "int8"), ("--endless",)], ids=" ".join)
def test_generate_py_opens_a_qwen(qwen, capsys, flags):
    flags = (*flags, "--prompt", "the rope", "--max_new_tokens", 12, "--seed", 1)
    assert run_in_process(generate_script.main, "generate.py", qwen[0], *flags) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()
