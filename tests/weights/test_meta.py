"""Meta directories: shards, params.json, and pickles, which are never run."""

import math
import os

import pytest
import torch
from damage import change_json

from model import ModelArgs
from model.rope_scaling import RopeScaling
from model.weights import meta
from model.weights.meta import Meta, args_from_params, hidden_dim, params_from


@pytest.fixture
def saved(small_model, tmp_path):
    """A model, and the directory in which it was saved. head_dim is dim / n_heads, as the format requires."""
    model = small_model(head_dim=8, n_kv_heads=2, norm_eps=1e-6).eval()
    meta.save(model, tmp_path)
    return model, tmp_path


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_round_trip_is_bit_equal(saved):
    model, directory = saved
    assert equal(Meta(directory).model().state_dict(), model.state_dict())
    assert Meta(directory).args == ModelArgs(**{**vars(model.args), "max_seq_len": 2048})
    assert equal(torch.load(directory / "consolidated.00.pth", weights_only=True), model.state_dict())
    meta.save(model.bfloat16(), directory)
    assert equal(Meta(directory).model(dtype="stored").state_dict(), model.state_dict())


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
    meta.save(model, tmp_path)
    split(model, tmp_path, 2, embedding_dim, **{"rope.freqs": torch.ones(4)})
    change_json(tmp_path / "params.json", vocab_size=vocab_size)
    assert equal(Meta(tmp_path).model().state_dict(), model.state_dict())


def test_missing_shards_and_shards_of_another_model_are_errors(small_model, tmp_path):
    model = small_model(head_dim=8, vocab_size=38)
    meta.save(model, tmp_path)
    split(model, tmp_path, 2, 0)
    torch.save(model.state_dict(), tmp_path / "consolidated.01.pth")
    with pytest.raises(ValueError, match="files with different tensors"):
        Meta(tmp_path)
    (tmp_path / "consolidated.01.pth").unlink()
    with pytest.raises(ValueError, match=r"attention\.wk\.weight is \(8, 48\), not \(16, 48\)"):
        Meta(tmp_path)
    (tmp_path / "consolidated.00.pth").rename(tmp_path / "consolidated.01.pth")
    with pytest.raises(ValueError, match=r"consolidated\.00\.pth is missing"):
        Meta(tmp_path)


def test_equal_embedding_and_output_are_tied(small_model, tmp_path):
    model = small_model(head_dim=8, tie_embeddings=True)
    meta.save(model, tmp_path)
    assert Meta(tmp_path).args.tie_embeddings
    assert equal(Meta(tmp_path).model().state_dict(), model.state_dict())


PUBLISHED = {  # params.json as published by Meta, and the feed-forward width of its models
    "llama1_7b": ({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-06}, 11008),
    "llama2_70b": (
        {"dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_heads": 64, "n_kv_heads": 8, "n_layers": 80,
         "norm_eps": 1e-05}, 28672,
    ),
    "llama3_8b": (
        {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "multiple_of": 1024, "ffn_dim_multiplier": 1.3,
         "norm_eps": 1e-05, "rope_theta": 500000.0}, 14336,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("params", "hidden"), PUBLISHED.values(), ids=PUBLISHED)
def test_params_of_published_models_give_their_feed_forward_width(params, hidden):
    args = args_from_params({**params, "vocab_size": 32000})
    assert args.hidden_dim == hidden
    assert args.rope_theta == params.get("rope_theta", 10000.0)
    assert args_from_params(params_from(args)) == args


def test_the_scaling_of_llama_3_1_and_3_2_is_recognized():
    params = {**PUBLISHED["llama3_8b"][0], "vocab_size": 128256, "use_scaled_rope": True}
    args = args_from_params(params)
    assert args.rope_scaling == RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)
    assert args.max_seq_len == 131072
    assert args_from_params(params_from(args)) == args
    small = {"dim": 2048, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8, "ffn_dim_multiplier": 1.5}
    assert args_from_params({**params, **small, "multiple_of": 256}).rope_scaling.factor == 32.0
    with pytest.raises(ValueError, match="rope_scaling is"):
        params_from(ModelArgs(dim=48, n_heads=6, rope_scaling=RopeScaling("llama3", 8.0, 4096)))


@pytest.mark.parametrize("width", [1, 2, 7, 96, 97, 127, 128, 129, 1000, 1001])
def test_params_can_express_any_feed_forward_width(width):
    params = params_from(ModelArgs(dim=48, n_heads=6, hidden_dim=width))
    assert hidden_dim(48, params["multiple_of"], params.get("ffn_dim_multiplier")) == width
    assert hidden_dim(48, 32, None) == 128, "a multiple already is not rounded up"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"moe": {"num_experts": 8}}, r"unknown: \['moe'\]"),
        ({"multiple_of": None, "rope_theta": None}, r"unknown: \[\], missing: \['multiple_of'\]"),
        ({"dim": 47}, "dim is 47"),
        ({"dim": "48"}, "params.json"),
        ({"n_layers": 10**400}, "n_layers is"),
        ({"multiple_of": 0}, "zero"),
        ({"ffn_dim_multiplier": math.inf}, "infinity"),
        ({"ffn_dim_multiplier": 3}, "does not match"),
    ],
)
def test_params_of_another_architecture_are_an_error(saved, changes, words):
    change_json(saved[1] / "params.json", **changes)
    with pytest.raises(ValueError, match=words) as error:
        Meta(saved[1])
    assert "\n" not in str(error.value)


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("new_format", [False, True])
def test_a_pickle_is_an_error_and_never_run(saved, tmp_path, new_format):
    model, directory = saved
    marker, path = tmp_path / "was_run", directory / "consolidated.00.pth"
    torch.save({**model.state_dict(), "extra": Bomb(marker)}, path, _use_new_zipfile_serialization=new_format)
    with pytest.raises(ValueError, match=r"consolidated\.00\.pth is damaged, or pickles more than") as error:
        Meta(directory).model()
    assert "\n" not in str(error.value)
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "without weights_only it is run"


DAMAGES = {
    "no end": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "list": lambda path: torch.save([torch.ones(2)], path),
    "number": lambda path: torch.save({"norm.weight": 3}, path),
    "sparse": lambda path: torch.save({"norm.weight": torch.ones(48).to_sparse()}, path),
    "int8": lambda path: torch.save({"norm.weight": torch.ones(48, dtype=torch.int8)}, path),
    "no data": lambda path: torch.save({"norm.weight": torch.ones(48, device="meta")}, path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_shard_is_a_one_line_error(saved, damage):
    damage(saved[1] / "consolidated.00.pth")
    with pytest.raises(ValueError, match=r"00\.pth is damaged, or pickles more.*: get it again$") as error:
        Meta(saved[1]).model()
    assert "\n" not in str(error.value)
