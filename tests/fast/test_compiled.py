"""The compiled step on a CPU: the text of the eager network, and files that know what they were compiled for."""

import copy
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import PROCESSORS
from torch import nn

from model import KVCache, Transformer, generate
from model.cli import machine
from model.fast import compiled
from model.fast.compiled import LIBRARY, SOURCES, UNUSED_DAYS, TracedStep, load
from model.fast.step import compile_seconds, for_decoding
from model.weights import load_model, save_model

SLOW = pytest.mark.slow
aten = torch.ops.aten
LIBRARY_CALLS = {aten.linear.default, aten.matmul.default, aten.mv.default, aten.scaled_dot_product_attention.default}
PROMPTS = [[1, 5, 7], [1], [3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture
def files(compiler, monkeypatch, tmp_path):
    """A function that counts the files of compiled code. They hold the numbers of programs, which run as exported.

    The compiler generates no code for complex numbers, so a program must not have any. It makes loops of the arithmetic
    of one row, but not of a library's products and attention.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs = []

    def build(program, path):
        values = [node.meta.get("val") for node in program.graph.nodes]
        assert not any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
        (tokens, *_), _ = program.example_inputs
        assert len(tokens) > 1 or LIBRARY_CALLS.isdisjoint(node.target for node in program.graph.nodes)
        path.write_text(f"{len(programs):9}", encoding="utf-8")
        programs.append(program)

    def load(path, weights):
        if not path.exists() or path.stat().st_size != 9:
            raise RuntimeError("no such file, or a damaged one")
        program = programs[int(path.read_text(encoding="utf-8"))]
        module = program.module()
        module.load_state_dict(weights, assign=True, strict=False)
        return module

    monkeypatch.setattr("model.fast.compiled.build", build)
    monkeypatch.setattr("model.fast.compiled.load", load)
    return lambda: len(list(tmp_path.rglob("*.pt2")))


# Texts of any length: one row, several rows, padded rows. The batch size is symbolic if it is not 1.
FORMS = [
    [([[1]], 20, False), ([[4] * 9], 12, False), ([[1]], 72, True)],
    [([[1, 2]] * 3, 9, False), ([[5, 6, 7]] * 5, 9, False), ([[8, 9]] * 2, 72, True)],
    [(PROMPTS, 9, False), (PROMPTS[1:], 9, False)],
]


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=SLOW), torch.bfloat16])
@pytest.mark.parametrize("processor", [pytest.param("emulated", marks=SLOW), "native"])
def test_compiled_text_equals_eager_text_and_only_another_form_of_a_batch_recompiles(
    small_model, files, monkeypatch, processor, dtype
):
    monkeypatch.setattr(machine, "CPU", PROCESSORS[processor])
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
    network = for_decoding(model, compile=True)
    for state, assign in ((model, False), (other, False), (model, True), (other, True)):
        model.load_state_dict(copy.deepcopy(state.state_dict()), assign=assign)
        assert list(generate(network, [[1, 2]], 9)) == list(generate(model, [[1, 2]], 9))
    model.double().float()  # other tensors with these weights
    assert list(generate(network, [[1, 2]], 9)) == list(generate(model, [[1, 2]], 9))
    assert files() == 1, "other weights of the same shape do not recompile"


class Still(Transformer):
    """A network that changes only the table of rotations."""

    def __init__(self, args):
        super().__init__(args)
        self.freqs_cis = torch.ones_like(self.freqs_cis)


@SLOW
def test_networks_that_differ_in_a_number_a_layer_or_the_class_have_their_own_code(small_model, files):
    changes = [{}, {"norm_eps": 1e-2}, {"qk_norm": True}, {"qkv_bias": True}, {"tie_embeddings": True}]
    models = [small_model(n_layers=1, **change) for change in changes]
    still, without_matrices = Still(models[0].args), small_model(n_layers=1)
    still.load_state_dict(models[0].state_dict())
    for name in ("w1", "w2", "w3"):
        setattr(without_matrices.layers[0].feed_forward, name, nn.Identity())
    other_eps = small_model(n_layers=1)
    other_eps.layers[0].ffn_norm.eps = 0.5
    for number, model in enumerate([*models, still, without_matrices, other_eps], 1):
        assert list(generate(model, [[1, 2]], 9, compile=True)) == list(generate(model, [[1, 2]], 9))
        assert files() == number


def test_devices_and_machines_that_cannot_compile_are_refused(small_model, monkeypatch):
    with pytest.raises(ValueError, match="compile is for CPUs and for GPUs of NVIDIA and AMD, not for meta: leave"):
        for_decoding(small_model().to("meta"), compile=True)
    for command in ("ccache g++", "no-compiler", ""):  # PyTorch calls one program, without arguments
        monkeypatch.setenv("CXX", command)
        with pytest.raises(ValueError, match=re.escape(f"compiler, and there is no {command!r} on PATH: install it")):
            generate(small_model(), [[1]], 2, compile=True)


def test_the_name_of_the_file_depends_on_every_file_of_the_library_that_a_step_runs(small_model, each_processor):
    model, used = small_model(n_layers=1, qk_norm=True).eval(), set()
    step, cache = TracedStep(for_decoding(model)), KVCache(model.args)
    model(torch.tensor([[1]]), 0, cache)  # allocates the cache
    rotations = torch.view_as_real(model.freqs_cis)[:4]
    sys.setprofile(lambda frame, *_: used.add(frame.f_code.co_filename))
    try:
        step(torch.tensor([[1]]), rotations, None, [cache.layers[0].keys, cache.layers[0].values])
    finally:
        sys.setprofile(None)
    library = {Path(name) for name in used if Path(name).is_relative_to(LIBRARY)}
    assert library
    assert library <= {file for pattern in SOURCES for file in LIBRARY.glob(pattern)}


def test_of_two_launches_at_once_the_second_waits_and_loads_the_file(small_model, files, tmp_path, monkeypatch):
    """The test holds the lock in place of the first launch, because PyTorch traces in one thread of a process only."""
    model, waiting = small_model(n_layers=1), threading.Event()
    text = list(generate(model, [[1, 2]], 5, compile=True))
    (file,) = tmp_path.rglob("*.pt2")
    hidden = file.rename(tmp_path / "hidden")
    lock = compiled.FileLock(file.with_suffix(".lock"))
    monkeypatch.setattr(compiled, "FileLock", lambda path, lock=compiled.FileLock: waiting.set() or lock(path))
    with ThreadPoolExecutor(1) as pool:
        with lock:
            second = pool.submit(lambda: list(generate(model, [[1, 2]], 5, compile=True)))
            assert waiting.wait(60)
            hidden.rename(file)
        assert second.result() == text
    assert files() == 1, "the second compiled nothing"


def test_files_of_compiled_code_are_loaded_later_compiled_again_if_damaged_and_removed_if_unused_for_a_month(
    small_model, files, tmp_path, capsys
):
    model = small_model(n_layers=1)
    text = list(generate(model, [[1, 2]], 9))

    def launch():
        """The number of the program, and whether it was compiled."""
        network = for_decoding(model, compile=True)
        assert list(generate(network, [[1, 2]], 9)) == text
        (file,) = tmp_path.rglob("*.pt2")
        assert time.time() - file.stat().st_mtime < 86_400, "it was used today"
        compilations = capsys.readouterr().err.count("compiling the network")
        assert (compile_seconds(network) > 0) == compilations, "the time is that of compiling, not of loading"
        return int(file.read_text(encoding="utf-8")), compilations

    assert launch() == (0, 1)
    (file,) = tmp_path.rglob("*.pt2")
    recent, old = (file.with_name(name) for name in ("recent", "old"))
    for path, days in ((file, UNUSED_DAYS + 1), (recent, UNUSED_DAYS - 1), (old, UNUSED_DAYS + 1)):
        path.touch()
        os.utime(path, (time.time() - days * 86_400,) * 2)
    assert launch() == (0, 0)
    file.write_text("7", encoding="utf-8")
    assert old.exists()
    assert launch() == (1, 1)
    assert (recent.exists(), old.exists()) == (True, False)


@SLOW
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own, of one of its parts about another
@pytest.mark.parametrize(
    ("kind", "prompts"), [("float32", [[1, 2]]), ("int8", [[1, 2]]), ("padded rows", [[1, 2, 3], [4], [5, 6]])]
)
def test_code_of_the_real_compiler_gives_the_eager_text(small_model, monkeypatch, tmp_path, kind, prompts):
    """The first call needs a C++ compiler; the second one loads the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = small_model(n_layers=1, dim=32, head_dim=8).eval()
    if kind == "int8":
        save_model(model, tmp_path / "model")
        model = load_model(tmp_path / "model", dtype=torch.bfloat16, int8=True)
    text = list(generate(model, prompts, 20))
    for compiler in ("g++", "true"):
        monkeypatch.setenv("CXX", compiler)
        assert list(generate(model, prompts, 20, compile=True)) == text
    network, cache = for_decoding(model, compile=True), KVCache(model.args)
    if len(prompts) == 1:
        for number, token in enumerate([3, 4, 5, 6]):
            logits = network(torch.tensor([[token]]), number, cache)
            if number == 1:
                earlier, copied = logits, logits.clone()
        assert torch.equal(earlier, copied), "they are not overwritten by those of a later token"
    (file,) = tmp_path.rglob("*.pt2")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(RuntimeError):
        load(file, {})


def test_code_is_for_all_threads_even_if_the_first_token_takes_fewer(small_model, files, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    with machine.threads(3):
        for free in (1, 2, 3):
            monkeypatch.setattr(machine, "free_cores", lambda free=free: free)
            list(generate(small_model(), [[1]], 3, compile=True))
            assert files() == 1


@SLOW
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_number_of_threads_changes_no_bit_of_compiled_logits(small_model, monkeypatch, tmp_path):
    """Although the compiler could divide the sum of a norm of so many numbers among the threads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sizes = {"dim": 4096, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64, "hidden_dim": 64, "n_layers": 1}
    model = small_model(**sizes, vocab_size=64)
    with machine.threads(os.cpu_count()):
        network, cache, logits = for_decoding(model, compile=True), KVCache(model.args), []
    network(torch.tensor([[1, 2]]), 0, cache)
    for threads in (1, os.cpu_count()):
        with machine.threads(threads), torch.no_grad():
            logits.append(network(torch.tensor([[3]]), 2, cache))
    assert torch.equal(*logits)
    expected = for_decoding(model)(torch.tensor([[1, 2, 3]]))
    torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)
