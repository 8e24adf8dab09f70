"""One seed, one thread, no accelerator, both kinds of processor, and one small network for every test that wants it."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import cache

# Before torch is loaded, and for the processes that tests start: one thread, and the CPU where there is more.
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
os.environ.pop("PYTHONUNBUFFERED", None)  # processes write as a user's do, and find a full disk when they end

import pytest
import torch
from hypothesis import HealthCheck, settings
from tqdm import tqdm

from model import ModelArgs, Transformer, kernels

# Started in the background (`make test &`), this process ignores Ctrl-C, and so would those that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A child that is forked while tqdm's monitor thread holds tqdm's lock would wait for that lock forever.
tqdm.monitor_interval = 0

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


# The same few examples each time; `make fuzz` has many, and new ones (--hypothesis-profile).
always = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("test", max_examples=15, derandomize=True, database=None, **always)
settings.register_profile("fuzz", max_examples=20_000, print_blob=True, **always)
settings.load_profile("test")


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)
    # What `auto` would otherwise take on a Mac. The real one is cached, too, and torch's compiler looks inside it.
    torch.backends.mps.is_available = cache(lambda: False)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(1337)


PROCESSORS = {
    "amx": kernels.Processor(bfloat16=True, amx=True, avx512=True),
    "native": kernels.Processor(bfloat16=True, avx512=True),
    "emulated": kernels.Processor(),
}


@pytest.fixture(scope="session", autouse=True)
def _no_processor_of_its_own() -> None:
    """The same ways are chosen on every machine that runs the tests."""
    kernels.CPU = PROCESSORS["emulated"]


@pytest.fixture(scope="module", params=["native", "emulated"])
def each_processor(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run the test twice: on a processor with bfloat16 instructions, and on one without. Forked children inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "CPU", PROCESSORS[request.param])
        yield kernels.CPU.bfloat16


@pytest.fixture
def small_args() -> Callable[..., ModelArgs]:
    """``small_args(n_kv_heads=3)``: the small architecture, with changes."""
    return lambda **changes: ModelArgs(**{**SMALL, **changes})


@pytest.fixture
def small_model(small_args: Callable[..., ModelArgs]) -> Callable[..., Transformer]:
    """``small_model(n_kv_heads=3)``: a network with weights wide enough that every fault shows in its logits."""

    def build(**changes) -> Transformer:
        model = Transformer(small_args(**changes))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.normal_(std=1.5 / weight.shape[1] ** 0.5)
        return model

    return build
