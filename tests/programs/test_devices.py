"""Training, evaluation and generation on a device that is not here: every operation on it is seen and judged.

The meta device stands for a GPU. Its tensors have no numbers, so whatever comes back to the CPU is invented: zeros.
The rules are those of Apple GPUs, which have no 64-bit floating point, and of all GPUs: a copy that does not wait reads
memory that may be gone, unless it is pinned, and each result that the CPU waits for leaves the device idle.
"""

import dataclasses
import importlib
from collections.abc import Iterator
from importlib.resources import files
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from letters import LETTERS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training_helpers import ARGS, dataset

from model import Transformer, generate
from model.decoding import sampling
from model.decoding.batches import Speed, cache_for
from model.decoding.conversation import Conversation
from model.decoding.endless import EndlessCache
from model.decoding.options import Sampling
from model.decoding.scoring import Score, score_texts, windows
from model.fast.step import for_decoding
from model.training import trainer as trainer_module
from model.training.config import TrainArgs
from model.training.trainer import Trainer
from study.positions import SCHEMES, build_scheme

DEVICE = torch.device("meta")
NO_DOUBLES = {torch.float64, torch.complex128}
aten = torch.ops.aten


class Device(TorchDispatchMode):
    """Counts how often the CPU waits for the device, and records the operators that ran there.

    Raises TypeError for 64-bit floating point on the device, and AssertionError for a copy that does not wait.
    """

    def __init__(self, has_doubles: bool = False) -> None:
        super().__init__()
        self.has_doubles = has_doubles
        self.waits = 0
        self.launches = 0  # of kernels
        self.copies: list[bool] = []  # to the device: whether each is one that does not wait
        self.pinned: list[Tensor] = []
        self.operators: set[str] = set()

    def wait(self) -> None:
        self.waits += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        here = any(x.device == DEVICE for x in inputs)
        if func is aten._local_scalar_dense.default and here:
            self.waits += 1
            return torch.zeros((), dtype=args[0].dtype).item()
        target = torch.device(kwargs.get("device") or DEVICE)
        within = target == DEVICE and all(x.device == DEVICE for x in inputs)  # in the order of the device's kernels
        copies = func in (aten._to_copy.default, aten.copy_.default) and not within
        source = args[func is aten.copy_.default] if copies else None
        runs_on = copies and bool(kwargs.get("non_blocking") or True in args[2:])
        if func is aten._to_copy.default and here and target.type == "cpu":  # into pinned memory if it does not wait
            self.waits += not runs_on
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if runs_on and not any(source.data_ptr() == pinned.data_ptr() for pinned in self.pinned):
            raise AssertionError("a copy that does not wait: its source may be freed or changed before it is read")
        if func is aten.copy_.default and args[0].device.type == "cpu" and args[1].device == DEVICE:
            self.waits += 1
            return args[0].zero_()
        out = func(*args, **kwargs)
        results = [x for x in tree_leaves(out) if isinstance(x, Tensor) and x.device == DEVICE]
        if not self.has_doubles and any(
            x.dtype in NO_DOUBLES for x in [*results, *(x for x in inputs if x.device == DEVICE)]
        ):
            raise TypeError(f"{func}: the device has no 64-bit floating point")
        if copies and results and source.device.type == "cpu":
            self.copies.append(runs_on)
        if here or results:
            name = func.name().removeprefix("aten::")
            self.operators.add(name)
            self.launches += not func.is_view and name not in ("_unsafe_view", "empty_like")
        return out


@pytest.fixture(autouse=True)
def _meta_counts_as_a_device(monkeypatch):
    """PyTorch has neither autocast nor fused optimizers for meta tensors; a GPU has both."""
    autocast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda device, *rest, **options: autocast("cpu", *rest, **options))
    foreach = importlib.import_module("torch.utils._foreach_utils")
    monkeypatch.setattr(foreach, "_get_foreach_kernels_supported_devices", lambda: ["cpu", "meta"])
    optimizer = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])


@pytest.fixture(scope="session")
def backends() -> dict[str, set[str]]:
    """Each of PyTorch's operators, and the backends that it has a kernel for, from the table that its code is made of.

    An operator without a kernel of its own is made of others ("Composite"), and so is every generated variant of one.
    """
    yaml = pytest.importorskip("yaml", reason="comes with transformers")
    table = files("torchgen") / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries = {entry["func"].split("(")[0]: entry for entry in yaml.load(table.read_bytes(), yaml.CSafeLoader)}
    found = {}
    for name, entry in entries.items():
        entry = entries[entry.get("structured_delegate", name)]
        keys = {key for keys in entry.get("dispatch", {"Composite": ""}) for key in keys.split(", ")}
        keys |= {"CUDA"} if "ufunc_inner_loop" in entry else set()  # generated
        found[name] = {"MPS", "CUDA"} if any(key.startswith("Composite") for key in keys) else keys
    return found


@pytest.fixture
def device(backends) -> Iterator[Device]:
    """All operators that a test runs there must have kernels for NVIDIA cards and for Apple GPUs."""
    with Device() as device:
        yield device
    assert device.operators
    assert {name for name in device.operators if not {"MPS", "CUDA"} <= backends[name]} == set()


@pytest.fixture
def card(backends, monkeypatch) -> Iterator[Device]:
    """A device that has 64-bit floating point, as NVIDIA's and AMD's: what draws tokens there, draws them here."""
    devices = tuple("meta" if device == "cuda" else device for device in sampling.SAMPLING_DEVICES)
    monkeypatch.setattr(sampling, "SAMPLING_DEVICES", devices)
    monkeypatch.setattr(trainer_module, "CARDS", ("meta",))
    with Device(has_doubles=True) as device:
        stream = MagicMock()
        stream.return_value.record_event.return_value.synchronize = device.wait
        monkeypatch.setattr(torch.cuda, "current_stream", stream)
        monkeypatch.setattr(
            Tensor, "pin_memory", lambda tensor: device.pinned.append(tensor.clone()) or device.pinned[-1]
        )
        yield device
    assert {name for name in device.operators if "CUDA" not in backends[name]} == set()


def trainer(scheme: str = "rope", **settings) -> Trainer:
    args = TrainArgs(**{"batch_size": 4, "dtype": "float32", "device": "cpu"} | settings)
    return Trainer(build_scheme(ARGS, scheme).to(DEVICE), dataset(), args)


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "adamw"}, {"dropout": 0.1, "micro_batch_size": 2}, {"dtype": "bfloat16"}]
)
def test_a_training_step_waits_once(device, settings):
    run = trainer(**settings)
    for _ in range(2):
        device.waits = 0
        run.step(1.0)
        assert device.waits == 1


@pytest.mark.parametrize(
    ("dtype", "optimizer", "layer", "rest"),
    [
        ("float32", "adamw", 97, 64),
        ("float32", "muon", 97, 136),
        ("bfloat16", "adamw", 124, 72),
        ("bfloat16", "muon", 124, 144),
        ("float16", "adamw", 124, 81),
        ("float16", "muon", 124, 173),
    ],
)
def test_a_training_step_on_a_card_waits_and_copies_once_and_launches_no_more_kernels_than_it_did(
    card, dtype, optimizer, layer, rest
):
    """Small networks on a card take as long as their launches. (Here PyTorch's fused attention is made of eleven.)"""
    launches = []
    for n_layers in (2, 3):
        network = Transformer(dataclasses.replace(ARGS, n_layers=n_layers)).to(DEVICE)
        run = Trainer(network, dataset(), TrainArgs(batch_size=4, dtype=dtype, device="cpu", optimizer=optimizer))
        run.step(1.0)
        card.launches = card.waits = 0
        card.copies.clear()
        run.step(1.0)
        assert card.waits == 1
        assert card.copies == [True], "of the tokens; a copy that waits would leave the card idle"
        launches.append(card.launches)
    assert launches[1] - launches[0] <= layer
    assert 3 * launches[0] - 2 * launches[1] <= rest


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_encoding_trains_and_generates(device, scheme):
    run = trainer(scheme)
    run.step(1.0)
    assert len(list(generate(run.model, [[1, 2, 3]], 5, temperature=0.8))) == 5


def test_a_validation_waits_once_a_batch(device):
    run = trainer(eval_tokens=64, batch_size=2)
    run.validation_loss()
    assert device.waits == 4


def test_evaluation_waits_once_a_window(device):
    model = Transformer(ARGS).to(DEVICE)
    score_texts(model, [(Score(""), windows(np.array([1, 2, 3, 4, 5]), 2, 2))], lambda scored: None)
    assert device.waits == 2


SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("prompts", "count", "options"),
    [([[1, 2, 3], [4]], 5, {}), ([[1, 2, 3], [4]], 5, SAMPLED), ([[1, 2, 3]], 3 * ARGS.max_seq_len, {"endless": True})],
    ids=["greedy", "sampled", "endless"],
)
def test_a_token_waits_once(device, dtype, prompts, count, options):
    model = Transformer(ARGS).to(DEVICE, dtype)
    for _ in generate(model, prompts, count, **options):
        assert device.waits == 1
        device.waits = 0


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_card_draws_tokens_itself_and_each_is_waited_for_once_and_never_copied_back(card, options):
    model = Transformer(ARGS).to(DEVICE)
    model.freqs_cis = model.freqs_cis.to(DEVICE)
    for number, _ in enumerate(generate(model, [[1, 2, 3], [4]], 5, **options)):
        assert card.waits == 1
        assert not (number and card.copies), "each would wait; random numbers are copied 64 at a time"
        card.waits = 0
        card.copies.clear()
    assert "max.dim" in card.operators or {"cumsum", "searchsorted.Tensor"} <= card.operators


@torch.no_grad()
def test_caches_on_a_device_have_slots_in_multiples_of_8():
    """Or else rows of 16-bit scores would not be aligned, as tensor cores need them."""
    model = Transformer(dataclasses.replace(ARGS, n_layers=1, max_seq_len=1003)).to(DEVICE)
    slots = []
    plain = [cache_for(model, [[1]], count, endless=False) for count in (1002, 12)]
    for cache in (*plain, cache_for(model, [[1]], 12, endless=True)):
        for start_pos in (0, 256, 512, 1002):
            if isinstance(cache, EndlessCache) or start_pos < cache.max_seq_len:
                model(torch.zeros(1, 1, dtype=torch.long, device=DEVICE), cache.make_room(start_pos, 1), cache)
                slots.append(cache.layers[0].keys.shape[2])
    assert slots == [1008] * 4 + [256] + [264, 520, 1008, 1008]


def test_a_turn_of_a_conversation_waits_once_a_token(device):
    network = for_decoding(Transformer(dataclasses.replace(ARGS, vocab_size=LETTERS.vocab_size)).to(DEVICE))
    conversation = Conversation(network, LETTERS, Sampling(0.8), Speed())
    for line in ("a", "b"):
        for _ in conversation.turn(line, 3 * ARGS.max_seq_len, []):
            assert device.waits == 1
            device.waits = 0


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_a_device_that_is_here_gives_the_losses_and_the_text_of_the_cpu(request, monkeypatch, scheme):
    name = request.config.getoption("--device")
    if name == "cpu":
        pytest.skip("needs --device cuda or --device mps")
    monkeypatch.undo()
    results = []
    for device in ("cpu", name):
        torch.manual_seed(0)
        model = build_scheme(ARGS, scheme).to(device)
        run = Trainer(model, dataset(), TrainArgs(batch_size=8, max_steps=30, dtype="float32", device=device))
        losses = [measured["train_loss"] for measured in run.steps()]
        results.append(([*losses, run.validation_loss()], list(generate(model, [[1, 2, 3]], 5))))
    (cpu_losses, cpu_text), (losses, text) = results
    assert losses == pytest.approx(cpu_losses, abs=1e-3)
    assert text == cpu_text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_that_is_here_a_recorded_step_gives_the_eager_text(request, monkeypatch, dtype):
    if request.config.getoption("--device") != "cuda":
        pytest.skip("needs --device cuda")
    monkeypatch.undo()
    model = Transformer(ARGS).to("cuda", dtype)
    for prompts, options in (
        ([[1, 2, 3]], {"max_new_tokens": 5}),
        ([[1, 2, 3], [4]], {"max_new_tokens": 5}),
        ([[1, 2, 3]], {"max_new_tokens": 3 * ARGS.max_seq_len, "endless": True}),
    ):
        assert list(generate(model, prompts, **options, compile=True)) == list(generate(model, prompts, **options))
