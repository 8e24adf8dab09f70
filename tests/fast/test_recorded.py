"""The recorded step, with a recorder that remembers operators instead of kernels, and runs them on the same memory.

So a CPU shows what a GPU would do: a replay reads and writes the tensors that were there when it was recorded.
"""

import copy
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from unittest.mock import MagicMock, call

import pytest
import torch
from letters import LETTERS
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import KVCache, Transformer, generate
from model.decoding.batches import Prompt, Sample, Speed, continue_samples
from model.decoding.conversation import Conversation
from model.decoding.endless import EndlessCache
from model.decoding.options import Sampling
from model.decoding.sampling import Sampler
from model.fast import recorded
from model.fast.kernels import accelerate
from model.fast.step import compile_seconds, for_decoding
from model.generation import decode

aten = torch.ops.aten


class Operators(TorchDispatchMode):
    """The operators that run, with their tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not aten._local_scalar_dense.default, "a recording cannot wait for a number"
        out = func(*args, **kwargs or {})
        if not func.is_view:
            self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.calls:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                old.copy_(new)


class Recorder:
    """Stands for ``capture``; ``alive`` are the recordings whose memory is not free yet."""

    def __init__(self):
        self.made, self.fails, self.before_replay = [], False, lambda: None
        self.alive_before = []  # each recording

    def __call__(self, step, device):
        self.alive_before.append(self.alive)
        step()
        if self.fails:
            raise torch.OutOfMemoryError("no memory for the recording")
        operators = Operators()
        with operators:
            out = step()
        self.made.append(weakref.ref(operators))

        def replay():
            self.before_replay()
            operators.replay()

        return replay, out

    @property
    def alive(self):
        return sum(made() is not None for made in self.made)


@pytest.fixture
def recorder(monkeypatch):
    """Here a CPU records, as a GPU does."""
    recorder = Recorder()
    monkeypatch.setattr("model.fast.step.RECORDING_DEVICES", ("cpu",))
    monkeypatch.setattr(recorded, "capture", recorder)
    return recorder


@pytest.fixture
def eager(recorder, monkeypatch):
    """``eager(model, prompts, n)``: the text without recordings."""

    def call(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr("model.fast.step.RECORDING_DEVICES", ())
            return list(generate(*arguments, **options))

    return call


@pytest.fixture
def no_collector():
    """Only what nothing refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_recorded_step_gives_the_eager_text(small_model, recorder, eager, dtype):
    model = small_model().to(dtype)
    network = for_decoding(model)
    texts = [([[1]], 20, False), ([[1]], 72, True)]
    if dtype == torch.float32:  # in 16 bits the rounding of several rows may differ, and so their text
        texts.append(([[1, 5, 7], [1], [3, 4, 5, 6, 7, 8, 9, 10]], 9, False))
    for number, (prompts, new, endless) in enumerate(texts, 1):
        expected = eager(model, prompts, new, endless=endless)
        assert list(generate(network, prompts, new, endless=endless)) == expected
        assert len(recorder.made) == number


def test_two_conversations_in_turn_record_once_each(small_model, recorder, monkeypatch):
    model = small_model(vocab_size=LETTERS.vocab_size, max_seq_len=256)

    def texts():
        network = for_decoding(model)
        pair = [Conversation(network, LETTERS, Sampling(0.0), Speed()) for _ in range(2)]
        turns = zip(*(talk.turn(line, 30, []) for talk, line in zip(pair, ("a", "bcd"))))
        return [[sample.text for sample in samples] for samples in turns]

    recorded = texts()
    assert len(recorder.made) == 2
    monkeypatch.setattr("model.fast.step.RECORDING_DEVICES", ())
    assert recorded == texts()


def test_threads_that_share_a_network_get_their_own_texts(small_model, recorder, eager):
    """Each waits before a replay until the other has set its inputs, too."""
    model, prompts = small_model(), ([[1, 2]], [[3, 4]])
    network, both = for_decoding(model), threading.Barrier(2, timeout=60)
    recorder.before_replay = both.wait
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda prompt: list(generate(network, prompt, 15)), prompts))
    assert found == [eager(model, prompt, 15) for prompt in prompts]


def test_after_a_recording_that_failed_the_next_call_records_again(small_model, recorder, eager):
    model = small_model(max_seq_len=600)
    network, cache = for_decoding(model), KVCache(model.args, max_seq_len=20)
    tokens = torch.tensor([[1, 2, 3, 4]])
    expected = accelerate(model.eval())(tokens)

    def step(position):
        return network(tokens[:, position : position + 1], position, cache)[0, 0]

    network(tokens[:, :2], 0, cache)
    assert torch.allclose(step(2), expected[0, 2], atol=1e-5)
    for layer in cache.layers:  # as a cache that grows
        layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
    recorder.fails = True
    with pytest.raises(torch.OutOfMemoryError):
        step(3)
    recorder.fails = False
    assert torch.allclose(step(3), expected[0, 3], atol=1e-5)


def test_weights_that_are_replaced_are_recorded_again(small_model, recorder):
    """Also in one cache, as in the turns of a conversation."""
    model, other = small_model(), small_model()
    network, cache = for_decoding(model), KVCache(model.args)

    def text(network):
        tokens = decode(network, torch.tensor([[1, 2]]), 9, Sampler(Sampling(0.0), [[]]), cache)
        return [int(token) for token in tokens]

    for state, assign in ((model, False), (other, False), (model, True), (other, True)):
        model.load_state_dict(copy.deepcopy(state.state_dict()), assign=assign)
        assert text(network) == text(accelerate(model))
    model.double().float()
    assert text(network) == text(accelerate(model))
    assert len(recorder.made) == 4


def test_a_recording_ends_with_its_cache_and_a_network_with_its_last_use(small_model, recorder, no_collector):
    model = small_model()
    network = for_decoding(model)
    for _ in range(3):
        list(generate(network, [[1, 2]], 9))
        assert recorder.alive == 0
    halfway = generate(network, [[1, 2]], 9)
    next(halfway), next(halfway)
    assert recorder.alive == 1
    alive = [weakref.ref(module) for each in (model, network) for module in each.modules()]
    del halfway, network, model
    assert recorder.alive == sum(module() is not None for module in alive) == 0


def test_the_recording_of_a_smaller_cache_is_freed_before_the_next_one_is_made(small_model, recorder, no_collector):
    network = for_decoding(small_model(max_seq_len=600))
    assert len(list(generate(network, [[1, 2]], 300, endless=True))) == 300
    assert recorder.alive_before == [0, 0]


def test_batches_of_one_size_are_recorded_once(small_model, recorder, eager):
    model = small_model(vocab_size=LETTERS.vocab_size)
    network = for_decoding(model)
    samples = [Sample(Prompt("", [3 + row]), LETTERS, 9) for row in range(6)]
    list(continue_samples(network, samples, Sampling(0.0), Speed(), batch_size=2))
    assert len(recorder.made) == 1
    assert [[sample.tokens] for sample in samples] == [
        [[token for (token,) in eager(model, [[3 + row]], 9)]] for row in range(6)
    ]


def test_an_endless_text_is_compiled_once_for_up_to_4096_slots(small_model, recorder, monkeypatch):
    monkeypatch.setattr("model.fast.step.check_compiles", lambda network: None)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append(function) or function)
    network = for_decoding(small_model(max_seq_len=600), compile=True)
    assert len(list(generate(network, [[1, 2]], 300, endless=True))) == 300
    assert len(compiled) == len(recorder.made) == 1
    model = small_model(n_layers=1, max_seq_len=5000)
    assert EndlessCache(for_decoding(model, compile=True)).max_seq_len == 4096
    assert EndlessCache(for_decoding(model)).max_seq_len == 256


def changed(model, what):
    """A network that has no faster step."""

    class Other(nn.Linear):
        pass

    class Scaled(Transformer):
        def forward(self, *args):
            return super().forward(*args) / 2

    if what == "hook":
        model.norm.register_forward_hook(lambda *_: None)
    elif what == "layer":
        model.layers[1].feed_forward.w1 = Other(48, 64, bias=False)
    elif what == "attend":
        model.layers[0].attention.attend = lambda q, k, v, mask: torch.zeros_like(q)
    elif what == "own forward":
        model.layers[0].feed_forward.forward = lambda x: torch.zeros_like(x)
    elif what == "forward":
        model = Scaled(model.args)
    return model


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("hook", "compile would skip the hooks of norm"),
        ("layer", r"compile is for this library's own layers, and layers\.1\.feed_forward\.w1 is a Other"),
        ("attend", r"compile is for this library's own attention, and layers\.0\.attention has another"),
        ("forward", "compile would skip forward of Scaled"),
        ("own forward", r"compile would skip the forward that layers\.0\.feed_forward has been given"),
    ],
)
def test_a_network_that_cannot_be_recorded_runs_eagerly_and_compile_refuses_it(
    small_model, recorder, eager, what, reason
):
    model = changed(small_model(), what)
    assert list(generate(model, [[1, 2]], 5)) == eager(model, [[1, 2]], 5)
    assert not recorder.made
    with pytest.raises(ValueError, match=f"^{reason}: leave compile out$"):
        generate(model, [[1, 2]], 5, compile=True)


def test_nothing_is_recorded_under_autocast(small_model, recorder, eager):
    model = small_model()
    with torch.autocast("cpu", torch.bfloat16):
        assert list(generate(model, [[1, 2]], 5)) == eager(model, [[1, 2]], 5)
    assert not recorder.made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compile_compiles_each_size_before_it_is_recorded(small_model, recorder, eager, compiler, monkeypatch):
    """More sizes than PyTorch allows, in each of two networks; with the arguments of PyTorch before 2.13.

    Without the compiler, which is slow.
    """

    def record(step, device):  # PyTorch does not compile under a dispatch mode
        out = step()
        return lambda: out.copy_(step()), out

    monkeypatch.setattr(recorded, "capture", record)

    def compile(model=None, *, fullgraph=False, dynamic=None, backend="inductor", mode=None, options=None):
        return torch_compile(model, fullgraph=fullgraph, dynamic=dynamic, backend="eager")

    torch_compile = torch.compile
    monkeypatch.setattr(torch, "compile", compile)
    counters = compiler.utils.counters
    before = counters["stats"]["unique_graphs"]
    for number in (1, 2):
        model = small_model(n_layers=1)
        network = for_decoding(model, compile=True)
        for rows in (*range(1, 11), 1):
            prompts = [[1, 2]] * rows
            assert list(generate(network, prompts, 3)) == eager(model, prompts, 3)
        assert counters["stats"]["unique_graphs"] == before + 10 * number
        assert compile_seconds(network) > 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_recording_is_made_on_the_stream_of_its_card_that_warmed_up_with_memory_of_its_own(monkeypatch, fails):
    """Without a stream, PyTorch takes one of the card on which the process made its first recording."""
    cuda = MagicMock()
    cuda.graph.return_value.__exit__.return_value = False
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", cuda.clear, raising=False)
    second_card, current, stream = torch.device("cuda", 1), cuda.current_stream.return_value, cuda.Stream.return_value
    outcomes = iter(["warm", torch.OutOfMemoryError("no memory for the recording") if fails else "recorded"])

    def step():
        assert recorded.ONE_AT_A_TIME.locked(), "CUDA allows one recording in a process"
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    cuda.step.side_effect = step
    with pytest.raises(torch.OutOfMemoryError) if fails else nullcontext():
        recorded.capture(cuda.step, second_card)
    assert cuda.current_stream.call_args == call(second_card)
    calls = [each for each in cuda.mock_calls if each[0] in ("stream", "Stream", "step", "clear", "graph")]
    assert calls[:4] == [call.stream(current), call.Stream(), call.stream(stream), call.step()]
    assert [name for name, *_ in calls[4:]] == ["clear", "graph", "step", "clear"]
    # So that another thread may wait for its own kernels meanwhile
    assert calls[5].kwargs == {"stream": stream, "capture_error_mode": "thread_local"}
    warm_up = cuda.mock_calls[: cuda.mock_calls.index(call.graph(cuda.CUDAGraph(), **calls[5].kwargs))]
    order = [each for each in warm_up if each in (call.step(), call.Stream().wait_stream(current))]
    assert order == [call.Stream().wait_stream(current), call.step()], "the inputs are written by the current stream"
    assert call.current_stream().wait_stream(stream) in warm_up, "what the warm-up has written is read by it"
    assert not recorded.ONE_AT_A_TIME.locked()
