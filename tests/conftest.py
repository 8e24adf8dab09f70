"""Fixtures for all tests: one seed, one thread, no accelerator, two kinds of processor, one small network."""

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType

# Before torch is loaded, and inherited by the processes that tests start: one thread, and no downloads.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
os.environ.pop("PYTHONUNBUFFERED", None)  # processes buffer stdout as a user's do, and detect a full disk at exit

import startup  # noqa: F401  changes what SIGINT does, which is restored below

import pytest
import setuptools  # noqa: F401  torch.compile fails if it comes after the distutils of Python 3.11, which some tests import
import torch
from hypothesis import HealthCheck, settings
from tqdm import tqdm

from model import ModelArgs, Transformer
from model.cli import machine
from model.cli.script import STOP_SIGNALS

# In the background (`make test &`) Ctrl-C is ignored, also by child processes, which some tests stop with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A process forked while tqdm's monitor thread holds tqdm's lock would hang.
tqdm.monitor_interval = 0

# The first backward pass starts threads for each device, and torch.compile pretends that there is a GPU. A process with
# these threads cannot be forked, so the first one comes before.
torch.zeros(1, requires_grad=True).sum().backward()

# All sizes differ, so that a transposed or broadcast axis cannot fit by accident.
SMALL = {
    "dim": 48,
    "n_layers": 2,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 10,
    "hidden_dim": 64,
    "vocab_size": 37,
    "max_seq_len": 24,
}


# A few fixed examples in the tests; `make fuzz` draws many new ones.
common = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("test", max_examples=15, derandomize=True, database=None, **common)
settings.register_profile("fuzz", max_examples=20_000, print_blob=True, **common)
settings.load_profile("test")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="cuda or mps: programs and trainings run there")


def pytest_configure(config: pytest.Config) -> None:
    """Without ``--device`` all machines have a CPU only, because ``auto`` would choose a GPU."""
    if config.getoption("--device") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Cached like the real function, because torch.compile inspects the cache.
        torch.backends.mps.is_available = cache(lambda: False)


# With these fixtures a test draws a picture or controls Chromium.
SLOW = {"matplotlib", "browser"}
# Libraries that take seconds to import
IMPORTED = ("transformers", "matplotlib", "compiler")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--dist loadgroup``, one worker runs a group: the tests of a library, or else those of a file.

    So that a library is imported once, and that fixtures of a file are made once.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & SLOW:
            item.add_marker("slow")
        file = item.nodeid.partition("::")[0]
        group = next((library for library in IMPORTED if library in fixtures), file)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(1337)


@pytest.fixture(autouse=True)
def _restore_signals() -> Iterator[None]:
    """Some tests change what signals do."""
    yield
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


PROCESSORS = {
    "amx": machine.Processor(bfloat16=True, amx=True, avx2=True, avx512=True),
    "native": machine.Processor(bfloat16=True, avx2=True, avx512=True),
    "avx512": machine.Processor(avx2=True, avx512=True),
    "emulated": machine.Processor(avx2=True),
    "arm": machine.Processor(bfloat16=True),
    "apple": machine.Processor(),
}


@pytest.fixture(scope="session", autouse=True)
def _same_processor_on_every_machine() -> None:
    """The tests use the same kernels on every machine."""
    machine.CPU = PROCESSORS["emulated"]


@pytest.fixture(scope="module", params=["native", "emulated"])
def each_processor(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run a test as on a processor with bfloat16 instructions, and as on one without. Forked processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "CPU", PROCESSORS[request.param])
        yield machine.CPU.bfloat16


@pytest.fixture
def small_args() -> Callable[..., ModelArgs]:
    """``small_args(n_kv_heads=3)``: the small architecture with changes."""
    return lambda **changes: ModelArgs(**{**SMALL, **changes})


@pytest.fixture
def small_model(small_args: Callable[..., ModelArgs]) -> Callable[..., Transformer]:
    """``small_model(n_kv_heads=3)``: a network with weights so large that errors show in its logits."""

    def build(**changes) -> Transformer:
        model = Transformer(small_args(**changes))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.normal_(std=1.5 / weight.shape[1] ** 0.5)
        return model

    return build


@pytest.fixture(scope="session")
def compiler() -> ModuleType:
    """What torch.compile and torch.export run on first."""
    return importlib.import_module("torch._dynamo")


@pytest.fixture(scope="session")
def matplotlib() -> ModuleType:
    pytest.importorskip("matplotlib.figure")
    return pytest.importorskip("matplotlib")


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """The oracle of many tests, which are skipped where it is not installed."""
    library = pytest.importorskip("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library
