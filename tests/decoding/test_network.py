"""The decoding network: the same weights and logits, and the caller's model is not changed."""

import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from greedy import greedy
from torch import nn

from model import KVCache, Transformer, generate
from model.attention import Attention, attention
from model.decoding import network as decoding
from model.decoding import recording
from model.decoding.network import LIBRARY, SOURCES, for_decoding, load
from model.decoding.recording import RecordedStep
from model.weights import load_model, save_model

PROMPTS = [[1, 5, 7], [1], [3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture
def files(monkeypatch, tmp_path):
    """A function that counts the files of compiled code. They hold the numbers of programs, which run as exported.

    The compiler generates no code for complex numbers, so a program must not have any.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs = []

    def build(program, path):
        values = [node.meta.get("val") for node in program.graph.nodes]
        assert not any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
        path.write_text(f"{len(programs):9}", encoding="utf-8")
        programs.append(program)

    def load(path, weights):
        if not path.exists() or path.stat().st_size != 9:
            raise RuntimeError("no such file, or a damaged one")
        program = programs[int(path.read_text(encoding="utf-8"))]
        module = program.module()
        module.load_state_dict(weights, assign=True, strict=False)
        return module

    monkeypatch.setattr("model.decoding.network.build", build)
    monkeypatch.setattr("model.decoding.network.load", load)
    return lambda: len(list(tmp_path.rglob("*.pt2")))


@pytest.mark.parametrize("changed", ["forward", "layer", "attention", "attend", "rotation"])
def test_what_a_user_changed_is_computed_for_the_prompt_and_for_every_token(small_model, monkeypatch, changed):
    class Shifted(Transformer):
        def forward(self, tokens, start_pos=0, cache=None, mask=None):
            return super().forward((tokens + 1) % 37, start_pos, cache, mask).roll(3, -1)

    class Negated(nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    class Backwards(Attention):
        def attend(self, xq, keys, values, mask):
            return attention(xq, keys, values, mask).flip(1)

    original, prompt = small_model(), [1, 5, 9, 2, 7, 3]
    model = (Shifted if changed == "forward" else Transformer)(original.args)
    model.load_state_dict(original.state_dict())
    if changed == "layer":
        model.output = Negated(model.args.dim, model.args.vocab_size, bias=False)
        model.output.weight = original.output.weight
    if changed == "attention":
        model.layers[1].attention = Backwards(model.args)
        model.layers[1].attention.load_state_dict(original.layers[1].attention.state_dict())
    if changed == "attend":
        model.layers[0].attention.attend = lambda q, k, v, mask: torch.zeros_like(q)
    if changed == "rotation":
        monkeypatch.setattr("model.attention.apply_rotary_emb", lambda xq, xk, freqs_cis: (xq, -2 * xk))
    text = [[token] for token in greedy(model, prompt, 12)]
    assert list(generate(model, [prompt], 12)) == text
    monkeypatch.undo()
    assert text != list(generate(original, [prompt], 12))


# Texts of any length: one row, several rows, padded rows. The batch size is symbolic if it is not 1.
FORMS = [
    [([[1]], 20, False), ([[4] * 9], 12, False), ([[1]], 72, True)],
    [([[1, 2]] * 3, 9, False), ([[5, 6, 7]] * 5, 9, False), ([[8, 9]] * 2, 72, True)],
    [(PROMPTS, 9, False), (PROMPTS[1:], 9, False)],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_text_equals_eager_text_and_only_another_form_of_a_batch_recompiles(
    small_model, files, each_processor, dtype
):
    model = small_model(n_layers=2).to(dtype)
    network = for_decoding(model, compile=True)
    # In 16 bits the rounding of several rows may differ, and so their text.
    for number, form in enumerate(FORMS if dtype == torch.float32 else FORMS[:1], 1):
        for prompts, new, endless in form:
            expected = list(generate(model, prompts, new, endless=endless))
            assert list(generate(network, prompts, new, endless=endless)) == expected
            assert files() == number


def test_compiled_code_uses_the_current_weights(small_model, files):
    model, other = small_model(n_layers=1), small_model(n_layers=1)
    for state, assign in ((model.state_dict(), False), (other.state_dict(), False), (other.state_dict(), True)):
        model.load_state_dict(copy.deepcopy(state), assign=assign)
        assert list(generate(model, [[1, 2]], 9, compile=True)) == list(generate(model, [[1, 2]], 9))
    assert files() == 1, "other weights of the same shape do not recompile"


class Still(Transformer):
    """A network that changes only the table of rotations."""

    def __init__(self, args):
        super().__init__(args)
        self.freqs_cis = torch.ones_like(self.freqs_cis)


def test_networks_that_differ_in_a_number_a_layer_or_the_class_have_their_own_code(small_model, files):
    changes = [{}, {"norm_eps": 1e-2}, {"qk_norm": True}, {"qkv_bias": True}, {"tie_embeddings": True}]
    models = [small_model(n_layers=1, **change) for change in changes]
    still, without_matrices = Still(models[0].args), small_model(n_layers=1)
    still.load_state_dict(models[0].state_dict())
    for name in ("w1", "w2", "w3"):
        setattr(without_matrices.layers[0].feed_forward, name, nn.Identity())
    for number, model in enumerate([*models, still, without_matrices], 1):
        assert list(generate(model, [[1, 2]], 9, compile=True)) == list(generate(model, [[1, 2]], 9))
        assert files() == number


def test_what_the_file_cannot_know_and_machines_that_cannot_compile_are_refused(small_model, monkeypatch):
    model = small_model()
    handle = model.norm.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="hooks of RMSNorm"):
        generate(model, [[1]], 2, compile=True)
    handle.remove()

    class Other(nn.Linear):
        pass

    model.layers[1].feed_forward.w1 = Other(48, 64, bias=False)
    with pytest.raises(ValueError, match="has Other"):
        generate(model, [[1]], 2, compile=True)

    class Scaled(Transformer):
        def forward(self, *args):
            return super().forward(*args) / 2

    with pytest.raises(ValueError, match="skip forward of Scaled"):
        generate(Scaled(model.args), [[1]], 2, compile=True)
    with pytest.raises(ValueError, match="compile is for CPUs and for GPUs of NVIDIA and AMD, not for meta"):
        for_decoding(small_model().to("meta"), compile=True)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match=r"compile needs a C\+\+ compiler, and there is none on PATH: install g\+\+"):
        generate(small_model(), [[1]], 2, compile=True)


def test_the_name_of_the_file_depends_on_every_file_of_the_library_that_a_step_runs(small_model, each_processor):
    model, used = small_model(n_layers=1, qk_norm=True).eval(), set()
    step, cache = for_decoding(model, compile=True).forward.__self__, KVCache(model.args)
    rotations = torch.view_as_real(model.freqs_cis)[:4]
    sys.setprofile(lambda frame, *_: used.add(frame.f_code.co_filename))
    try:
        step(torch.tensor([[1]]), rotations, None, [cache.layers[0].keys, cache.layers[0].values])
    finally:
        sys.setprofile(None)
    library = {Path(name).relative_to(LIBRARY).as_posix() for name in used if Path(name).is_relative_to(LIBRARY)}
    assert library
    assert library <= {*SOURCES}


def test_of_two_launches_at_once_the_second_waits_and_loads_the_file(small_model, files, tmp_path, monkeypatch):
    """The test holds the lock in place of the first launch, because PyTorch traces in one thread of a process only."""
    model, waiting = small_model(n_layers=1), threading.Event()
    text = list(generate(model, [[1, 2]], 5, compile=True))
    (file,) = tmp_path.rglob("*.pt2")
    hidden = file.rename(tmp_path / "hidden")
    lock = decoding.FileLock(file.with_suffix(".lock"))
    monkeypatch.setattr(decoding, "FileLock", lambda path, lock=decoding.FileLock: waiting.set() or lock(path))
    with ThreadPoolExecutor(1) as pool:
        with lock:
            second = pool.submit(lambda: list(generate(model, [[1, 2]], 5, compile=True)))
            assert waiting.wait(60)
            hidden.rename(file)
        assert second.result() == text
    assert files() == 1, "the second compiled nothing"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_recorded_step_gives_the_eager_text(small_model, monkeypatch, dtype):
    """Without a GPU the recording runs the step again, which a GPU must be told to do with tensors alone."""
    recordings = []

    def record(step, device):
        out = step()
        recordings.append(out)
        return lambda: out.copy_(step()), out

    monkeypatch.setattr(recording, "record", record)
    monkeypatch.setattr(decoding, "compile_step", lambda step, form, inputs: RecordedStep(step.logits))
    model = small_model(n_layers=2).to(dtype)
    network = for_decoding(model, compile=True)
    for number, (prompts, new, endless) in enumerate([FORMS[0][0], FORMS[2][0], FORMS[0][2]], 1):
        expected = list(generate(model, prompts, new, endless=endless))
        assert list(generate(network, prompts, new, endless=endless)) == expected
        assert len(recordings) == number


def test_files_of_compiled_code_are_loaded_later_and_compiled_again_if_damaged(small_model, files, tmp_path, capsys):
    model, numbers, notes = small_model(n_layers=1), [], []
    text = list(generate(model, [[1, 2]], 9))
    for damaged in (False, False, True):
        for file in tmp_path.rglob("*.pt2") if damaged else ():
            file.write_text("7", encoding="utf-8")
        assert list(generate(model, [[1, 2]], 9, compile=True)) == text
        (file,) = tmp_path.rglob("*.pt2")
        numbers.append(int(file.read_text(encoding="utf-8")))
        notes.append(capsys.readouterr().err.count("compiling the network"))
    assert numbers == [0, 0, 1]
    assert notes == [1, 0, 1]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own, of one of its parts about another
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_code_of_the_real_compiler_gives_the_eager_text(small_model, monkeypatch, tmp_path, kind):
    """The only test that needs a C++ compiler, and only for the first call, because the second one loads the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = small_model(n_layers=1, dim=32, head_dim=8).eval()
    if kind == "int8":
        save_model(model, tmp_path / "model")
        model = load_model(tmp_path / "model", dtype=torch.bfloat16, int8=True)
    text = list(generate(model, [[1, 2]], 20))
    for compiler in ("g++", "true"):
        monkeypatch.setenv("CXX", compiler)
        assert list(generate(model, [[1, 2]], 20, compile=True)) == text
    (file,) = tmp_path.rglob("*.pt2")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(RuntimeError):
        load(file, {})
