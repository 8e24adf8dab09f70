"""Meta directories: shards and params.json."""

import pytest
import torch
from damage import change_json
from meta_files import save_meta

from model import ModelArgs
from model.rope_scaling import RopeScaling
from model.weights.meta import args_from_params, open_directory


@pytest.fixture
def saved(small_model, tmp_path):
    """A directory with a model, whose head_dim is dim / n_heads, as the format requires."""
    save_meta(small_model(head_dim=8, norm_eps=1e-6), tmp_path)
    return tmp_path


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("tied", [False, True])
def test_a_directory_is_read_bit_by_bit(small_model, tmp_path, tied):
    model = small_model(head_dim=8, tie_embeddings=tied)
    save_meta(model, tmp_path)
    opened = open_directory(tmp_path)
    assert opened.args == ModelArgs(**{**vars(model.args), "max_seq_len": 2048}), "tied if both matrices are equal"
    assert equal(opened.model().state_dict(), model.state_dict())


def split(model, directory, count, embedding_dim, **extra):
    """Write shards like those of model-parallel training, split along the axis of each kind of tensor."""
    axis = {"tok_embeddings": embedding_dim, "output": 0, "wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w3": 0, "w2": 1}
    for i in range(count):
        shard = dict(extra)
        for name, tensor in model.state_dict().items():
            kind = name.split(".")[-2]
            shard[name] = tensor.chunk(count, axis[kind])[i].clone() if kind in axis else tensor
        torch.save(shard, directory / f"consolidated.{i:02}.pth")


@pytest.mark.parametrize("embedding_dim", [0, 1], ids=["llama3", "llama1"])
@pytest.mark.parametrize("vocab_size", [38, -1, None])  # Llama 1 and 2 leave it to the tokenizer
def test_shards_are_joined_on_the_right_axes(small_model, tmp_path, embedding_dim, vocab_size):
    model = small_model(head_dim=8, vocab_size=38)
    save_meta(model, tmp_path)
    split(model, tmp_path, 2, embedding_dim, **{"rope.freqs": torch.ones(4)})
    change_json(tmp_path / "params.json", vocab_size=vocab_size)
    assert equal(open_directory(tmp_path).model().state_dict(), model.state_dict())


def test_missing_shards_and_shards_of_another_model_are_errors(small_model, tmp_path):
    model = small_model(head_dim=8, vocab_size=38)
    save_meta(model, tmp_path)
    split(model, tmp_path, 2, 0)
    torch.save(model.state_dict(), tmp_path / "consolidated.01.pth")
    with pytest.raises(ValueError, match="files with different tensors"):
        open_directory(tmp_path)
    (tmp_path / "consolidated.01.pth").unlink()
    with pytest.raises(ValueError, match=r"attention\.wk\.weight is \(8, 48\), not \(16, 48\)"):
        open_directory(tmp_path)
    (tmp_path / "consolidated.00.pth").rename(tmp_path / "consolidated.01.pth")
    with pytest.raises(ValueError, match=r"consolidated\.00\.pth is missing"):
        open_directory(tmp_path)


# params.json as published by Meta; the feed-forward width, the factor of RoPE's scaling, and the context of its models
LLAMA_1 = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-06}
LLAMA_2 = {**LLAMA_1, "dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_heads": 64, "n_kv_heads": 8}
LLAMA_3 = {**LLAMA_1, "n_kv_heads": 8, "multiple_of": 1024, "ffn_dim_multiplier": 1.3, "rope_theta": 500000.0}
LLAMA_32 = {**LLAMA_3, "dim": 2048, "n_layers": 16, "multiple_of": 256, "ffn_dim_multiplier": 1.5}
PUBLISHED = {
    "Llama 1 7B": (LLAMA_1, 11008, None, 2048),
    "Llama 2 70B": (LLAMA_2, 28672, None, 2048),
    "Llama 3 8B": (LLAMA_3, 14336, None, 8192),
    "Llama 3.1 8B": (LLAMA_3 | {"use_scaled_rope": True}, 14336, 8.0, 131072),
    "Llama 3.2 1B": (LLAMA_32 | {"use_scaled_rope": True}, 8192, 32.0, 131072),
}


@pytest.mark.parametrize(("params", "hidden", "factor", "context"), PUBLISHED.values(), ids=PUBLISHED)
def test_params_of_published_models_are_completed_as_meta_completes_them(params, hidden, factor, context):
    args = args_from_params({**params, "vocab_size": 32000})
    assert (args.hidden_dim, args.max_seq_len) == (hidden, context)
    assert args.rope_theta == params.get("rope_theta", 10000.0)
    assert args.rope_scaling == (RopeScaling("llama3", factor, 8192, 1.0, 4.0) if factor else None)


def test_the_factor_of_the_scaling_is_that_of_the_file_if_it_has_one(saved):
    change_json(saved / "params.json", use_scaled_rope=True, rope_scaling_factor=16.0)
    assert open_directory(saved).args.rope_scaling == RopeScaling("llama3", 16.0, 8192, 1.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"moe": {"num_experts": 8}}, r"unknown: \['moe'\]"),
        ({"multiple_of": None, "rope_theta": None}, r"unknown: \[\], missing: \['multiple_of'\]"),
        ({"dim": "48"}, "params.json"),
        ({"n_layers": 10**400}, "n_layers is"),
        ({"multiple_of": 0}, "zero"),
        ({"ffn_dim_multiplier": 3}, "does not match"),
    ],
)
def test_params_of_another_architecture_are_an_error(saved, changes, words):
    change_json(saved / "params.json", **changes)
    with pytest.raises(ValueError, match=words) as error:
        open_directory(saved)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_a_shard_of_anything_but_dense_tensors_of_floats_is_an_error(saved):
    wrong = (3, torch.ones(48).to_sparse(), torch.ones(48, dtype=torch.int8))
    for content in ([torch.ones(2)], *({"norm.weight": value} for value in wrong)):
        torch.save(content, saved / "consolidated.00.pth")
        with pytest.raises(ValueError, match=r"^[^\n]*00\.pth is damaged, or pickles more[^\n]*: get it again$"):
            open_directory(saved)
