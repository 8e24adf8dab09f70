"""Subclasses of the network: saved under their name, and loaded with the same class only."""

import math
import sys
from pathlib import Path

import pytest
import torch
from script_helpers import library_example, run_in_process
from torch import nn

import convert
from model import KVCache, Transformer, generate
from model.fast.kernels import accelerate
from model.weights import find_network, load_model, open_checkpoint, save_model
from model.weights.tensors import read_header

SLIDING = (
    library_example().replace("64", "4")
    + """
class Other(Transformer):
    pass


number = 3
"""
)


class Scaled(Transformer):
    """A network with other parameters, one of no dimensions, a buffer and a table."""

    def __init__(self, args):
        super().__init__(args)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.logit_scale = nn.Parameter(torch.ones(args.vocab_size))
        self.register_buffer("steps", torch.arange(3))
        self.table = torch.arange(args.max_seq_len) / 7

    def forward(self, *args):
        return super().forward(*args) * self.logit_scale


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the user's modules."""
    (tmp_path / "sliding.py").write_text(SLIDING, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield tmp_path
    sys.modules.pop("sliding", None)


@pytest.fixture
def sliding(here, small_args):
    model = find_network("sliding:SlidingTransformer")(small_args(head_dim=8)).eval()
    save_model(model, here / "out")
    return model


@pytest.mark.usefixtures("each_processor")
def test_a_variant_is_saved_loaded_and_generated_from(sliding):
    tokens = torch.randint(0, 37, (2, 20))
    loaded = load_model("out", network=find_network("sliding:SlidingTransformer"))
    with torch.no_grad():
        assert torch.equal(loaded(tokens), accelerate(sliding)(tokens))
        cached = loaded(tokens, 0, KVCache(loaded.args, 2))
        assert torch.equal(cached, loaded(tokens))
        changed = [tokens.clone(), tokens.clone()]
        for end, earlier in zip((13, 14), changed):  # two layers that each see the 3 tokens before one reach 6 of them
            earlier[:, :end] = (earlier[:, :end] + 1) % 37
        is_same = [torch.allclose(loaded(earlier)[:, -1], cached[:, -1]) for earlier in changed]
        assert is_same == [True, False]
    texts = [list(generate(model, [[1, 2, 3, 4, 5, 6]], max_new_tokens=9)) for model in (sliding, loaded)]
    assert texts[0] == texts[1]


def test_loading_a_variant_without_its_class_is_an_error(sliding):
    assert open_checkpoint("out").args == sliding.args
    assert open_checkpoint("out").subclass_name == "sliding:SlidingTransformer"
    for network in (None, Transformer, find_network("sliding:Other"), Scaled):
        with pytest.raises(ValueError, match=r"^out holds the weights of sliding:SlidingTransformer"):
            load_model("out", network=network)


def test_transformers_and_convert_reject_a_variant_by_name(sliding, capsys, transformers):
    assert run_in_process(convert.main, "convert.py", "out", "new", "--to", "hf") == 2
    assert "sliding:SlidingTransformer" in capsys.readouterr().err
    assert not Path("new").exists()
    with pytest.raises(ValueError, match="sliding:SlidingTransformer"):
        transformers.AutoModelForCausalLM.from_pretrained("out")


def test_further_tensors_of_a_variant_keep_their_names(small_args, tmp_path):
    model = Scaled(small_args()).eval()
    with torch.no_grad():
        model.logit_scale.uniform_(1, 2)
    model.steps += 5
    random_state = torch.get_rng_state()
    model.to(torch.bfloat16)
    save_model(model, tmp_path)
    assert read_header(tmp_path / "model.safetensors").keys() == model.state_dict().keys()
    loaded = load_model(tmp_path, network=Scaled, dtype="stored")
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert torch.equal(loaded.table, model.table)
    assert torch.equal(torch.get_rng_state(), random_state)
    model.gain.data.fill_(math.nan)
    save_model(model, tmp_path)
    with pytest.raises(ValueError, match="gain contains NaN"):
        load_model(tmp_path, network=Scaled)


def test_weights_of_a_plain_llama_load_into_a_variant_with_the_same_tensors(small_model, here, tmp_path):
    model = small_model(head_dim=8).eval()
    save_model(model, tmp_path / "llama")
    loaded = load_model(tmp_path / "llama", network=find_network("sliding:SlidingTransformer"))
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match=r"logit_scale .* is missing"):
        load_model(tmp_path / "llama", network=Scaled)


def test_a_variant_that_args_alone_do_not_determine_is_refused(small_args, tmp_path):
    model = Scaled(small_args())
    model.further = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"Scaled\(args\), .*: further \(3,\)"):
        save_model(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sliding", "give module:Class"),
        (":X", "give module:Class"),
        ("sliding:Missing", "sliding has no subclass of Transformer with this name"),
        ("json:X", r"json has no subclass of Transformer with this name; \S+ was imported"),
        ("sliding:number", "sliding has no subclass of Transformer with this name"),
        ("nowhere:X", "nowhere cannot be imported .ModuleNotFoundError"),
        ("broken:X", "broken cannot be imported .SyntaxError"),
    ],
)
def test_a_wrong_network_name_is_an_error_with_the_reason(here, name, words):
    with pytest.raises(ValueError, match=words) as error:
        find_network(name)
    assert "\n" not in str(error.value)
