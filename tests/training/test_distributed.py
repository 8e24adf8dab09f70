"""Training in two processes, with DDP or FSDP, gives the same run as in one."""

import dataclasses
import importlib
import os
import re
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from training_helpers import ARGS, dataset, make_run, metrics, run_in_processes, same, stop_at, trainer

from model import Transformer
from model.fast.merged import MergedAttention
from model.training.distributed import Ranks, gather_tensors, local_device, processes
from model.training.trainer import Trainer, initial_model
from model.weights import load_model, save_model
from model.weights.tensors import load_tensors

SETTINGS = {"max_steps": 20, "eval_every": 10, "batch_size": 12, "micro_batch_size": 3, "optimizer": "adamw"}
SETTINGS |= {"context_warmup": 0.4}
SETTINGS |= {"device": "cpu"}  # the machine may have fewer GPUs than there are processes here
STATE = "training_state.safetensors"


def column(directory: Path, name: str) -> list[float]:
    return [line[name] for line in metrics(directory) if name in line]


@pytest.fixture
def _fsdp() -> None:
    """Import it once, instead of in each forked process."""
    importlib.import_module("torch.distributed.fsdp")


class Buffered(Transformer):
    """A network with a buffer that is saved and one that is not."""

    def __init__(self, args):
        super().__init__(args)
        self.register_buffer("scale", torch.full((1,), 0.5))
        self.register_buffer("shift", torch.arange(args.vocab_size) / 10, persistent=False)

    def forward(self, *args):
        return super().forward(*args) * self.scale + self.shift


def make(ranks, directory: Path, **settings):
    return trainer(directory, ranks=ranks, **{"network": Buffered} | SETTINGS | settings)


def train(ranks, directory: Path, until: int = 20, **settings) -> None:
    """Train, or resume, to step ``until`` of 20."""
    run = make(ranks, directory, **settings)
    if settings.get("fsdp"):
        assert all(p.to_local().numel() < p.numel() for p in run.model.parameters() if p.ndim == 2)
    if until < 20:
        stop_at(run, until)
    else:
        run.run()


def assert_same_run(directory: Path, optimizer: str) -> None:
    """Whether the run is that of a single process."""
    single = directory / "single"
    single.mkdir()
    train(None, single, optimizer=optimizer)
    assert column(directory, "step") == list(range(1, 21))
    for name in ("train_loss", "val_loss", "grad_norm"):
        assert column(directory, name) == pytest.approx(column(single, name), abs=1e-5)
    assert {path.suffix for path in directory.glob("*.*")} == {".safetensors", ".json", ".jsonl"}, "no pickle"
    state, single_state = (load_tensors(path / STATE) for path in (directory, single))
    assert state.keys() == single_state.keys()
    for name in state:
        torch.testing.assert_close(state[name], single_state[name], atol=1e-4, rtol=1e-3, msg=name)
    best, single_best = (load_model(path, network=Buffered).state_dict() for path in (directory, single))
    assert all(torch.allclose(best[name], single_best[name], atol=1e-4) for name in best)
    assert best["scale"].item() == 0.5


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_ddp_in_two_processes_gives_the_run_of_one_process(tmp_path, optimizer):
    assert run_in_processes(2, partial(train, directory=tmp_path, optimizer=optimizer)) == [0, 0]
    assert_same_run(tmp_path, optimizer)


@pytest.mark.slow
@pytest.mark.usefixtures("_fsdp")
def test_on_cards_products_are_merged_with_ddp_but_not_with_fsdp_which_would_keep_whole_matrices(tmp_path, monkeypatch):
    """Here CPUs count as cards."""
    monkeypatch.setattr("model.training.trainer.CARDS", ("cpu",))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)

    def run(ranks) -> None:
        for fsdp, merged in ((False, 2), (True, 0)):
            directory = tmp_path / str(fsdp)
            directory.mkdir(exist_ok=True)
            run = make(ranks, directory, fsdp=fsdp)
            found = {module for module in run.parallel_loss.modules() if isinstance(module, MergedAttention)}
            assert len(found) == merged
            run.run()

    assert run_in_processes(2, run) == [0, 0]
    for directory in tmp_path.iterdir():
        assert_same_run(directory, "adamw")


@pytest.mark.slow
def test_ddp_in_float16_learns_as_in_float32_and_is_resumed_bit_for_bit(tmp_path):
    """If the gradients of one process overflow, both compute the step again."""
    whole, resumed, exact = (tmp_path / name for name in ("whole", "resumed", "exact"))

    def overflowing(ranks, directory: Path, until: int = 20, **settings) -> None:
        directory.mkdir(exist_ok=True)
        run = make(ranks, directory, dtype="float16", **settings)
        first = iter([torch.inf if ranks.rank == 1 and not settings else 1.0])
        run.model.output.weight.register_hook(lambda grad: grad * next(first, 1.0))
        stop_at(run, until)
        assert ranks.gather(run.scaler.get_scale()) == [[2.0**15, 2.0**15]]

    def whole_and_begin(ranks) -> None:
        overflowing(ranks, whole)
        overflowing(ranks, resumed, until=7)

    assert run_in_processes(2, whole_and_begin) == [0, 0]
    assert run_in_processes(2, partial(overflowing, directory=resumed, resume=True)) == [0, 0]
    exact.mkdir()
    train(None, exact)
    assert column(whole, "train_loss") == pytest.approx(column(exact, "train_loss"), rel=0.01)
    assert same(*(load_tensors(path / STATE) for path in (whole, resumed)))
    assert column(whole, "train_loss") == column(resumed, "train_loss")


@pytest.mark.slow
@pytest.mark.usefixtures("_fsdp")
def test_a_run_is_resumed_with_other_numbers_of_processes_sharded_or_not(tmp_path):
    train(None, tmp_path, until=5)
    assert run_in_processes(2, partial(train, directory=tmp_path, fsdp=True, resume=True, until=10)) == [0, 0]
    assert column(tmp_path, "step") == list(range(1, 11))
    assert run_in_processes(3, partial(train, directory=tmp_path, fsdp=True, resume=True, until=15)) == [0, 0, 0]
    train(None, tmp_path, resume=True)
    assert_same_run(tmp_path, "adamw")


@pytest.mark.slow
@pytest.mark.usefixtures("_fsdp")
def test_a_sharded_run_in_bfloat16_is_resumed_bit_for_bit_and_learns_as_in_one_process(tmp_path):
    settings = {"fsdp": True, "dtype": "bfloat16", "dropout": 0.1}
    whole, resumed, exact, one = (tmp_path / name for name in ("whole", "resumed", "exact", "one"))
    for directory in (whole, resumed, exact, one):
        directory.mkdir()

    def begin(ranks) -> None:
        train(ranks, whole, **settings)
        train(ranks, resumed, until=7, **settings)

    def go_on(ranks) -> None:
        train(ranks, resumed, resume=True, **settings)
        train(ranks, exact, **settings | {"dropout": 0.0})

    assert run_in_processes(2, begin) == [0, 0]
    assert run_in_processes(2, go_on) == [0, 0]
    assert same(*(load_tensors(path / STATE) for path in (whole, resumed)))
    assert column(whole, "train_loss") == column(resumed, "train_loss")
    train(None, one, dtype="bfloat16")
    assert column(exact, "train_loss") == pytest.approx(column(one, "train_loss"), abs=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("_fsdp")
@pytest.mark.parametrize("start", ["random", "init_from", "resume"])
def test_a_model_that_is_sharded_is_never_whole_in_a_process_and_has_the_weights_of_one_process(tmp_path, start):
    settings = {"max_steps": 4, "eval_every": 2, "optimizer": "adamw", "device": "cpu", "dtype": "float32"}
    settings |= vars(ARGS) | {"batch_size": 4, "n_layers": 3}
    single = make_run(tmp_path / "single", **settings)
    model = Transformer(single.model)
    if start == "init_from":
        save_model(model, tmp_path / "base")
        settings["init_from"] = tmp_path / "base"
    if start == "resume":
        (tmp_path / "state").mkdir()
        whole = Trainer(model, dataset(), single.train, tmp_path / "state")
        stop_at(whole, 2)
    if start == "random":
        torch.manual_seed(single.train.seed)
        model = Transformer(single.model)

    def shard(ranks) -> None:
        run = dataclasses.replace(make_run(tmp_path / "state", **settings, fsdp=True), resume=start == "resume")
        torch.manual_seed(run.train.seed)
        sharded = initial_model(run, run.machine(ranks), ranks)
        in_first = ranks.is_first and start != "resume"
        assert all(parameter.is_meta != in_first for parameter in sharded.parameters())
        trainer = Trainer(sharded, dataset(), run.train, run.directory, ranks, resume=run.resume)
        found = gather_tensors(sharded.state_dict(), ranks)
        assert not ranks.is_first or same(found, model.state_dict())
        assert all(p.to_local().numel() < p.numel() for p in sharded.parameters() if p.ndim == 2)
        assert trainer.run().step == 4

    (tmp_path / "state").mkdir(exist_ok=True)
    assert run_in_processes(2, shard) == [0, 0]
    assert load_model(tmp_path / "state").args == single.model


def test_weights_to_shard_that_cannot_be_used_are_one_message_and_end_all_processes(tmp_path, capfd):
    model = Transformer(ARGS)
    model.norm.weight.data[0] = torch.nan
    save_model(model, tmp_path)
    settings = vars(ARGS) | {"fsdp": True, "init_from": tmp_path, "device": "cpu"}

    def load(ranks) -> None:
        run = make_run(**settings)
        initial_model(run, run.machine(ranks), ranks)

    assert run_in_processes(2, load) == [1, 2]
    assert capfd.readouterr().err.count("Error: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("same_text", [True, False])
def test_a_directory_that_the_processes_do_not_share_is_refused_before_the_first_step(tmp_path, capfd, same_text):
    """The second process has an older copy of the run there, or the directory of another run."""
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        train(None, tmp_path / str(rank), until=3 - rank * same_text)

    def resume(ranks) -> None:
        text = dataset(600 if same_text else 600 + ranks.rank)
        make(ranks, tmp_path / str(ranks.rank), resume=True, text=text)

    assert run_in_processes(2, resume) == [1, 1]
    assert len(re.findall(r"ValueError: .* differs between machines", capfd.readouterr().err)) == 2


@pytest.mark.slow
def test_a_signal_to_one_process_or_the_fastest_clock_stops_all_after_the_same_step(tmp_path):
    def signalled(ranks) -> None:
        run = stop_at(trainer(tmp_path, ranks=ranks, **SETTINGS), 3 if ranks.rank == 1 else 1000, 2)
        assert (run.progress.step, run.stopped_by) == (3, 2)

    def timed(ranks) -> None:
        now = iter(range(0, 10_000, 1 + 4 * ranks.rank))  # seconds; the clock of the second process is 5 times as fast
        settings = SETTINGS | {"max_steps": None, "minutes": 1, "eval_every": 1000}
        run = trainer(tmp_path, ranks=ranks, **settings, clock=lambda: next(now))
        assert run.run().step == 4  # a step reads the clock three times, which is 15 seconds of the fast one

    def both(ranks) -> None:
        signalled(ranks)
        timed(ranks)

    assert run_in_processes(2, both) == [0, 0]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_in_one_process_ends_all(tmp_path, capfd):
    """A loss may be infinite while its gradient is not."""

    def spoiled(ranks) -> None:
        step = Trainer.step
        bad = {"train_loss": torch.inf} if ranks.rank == 1 else {}
        Trainer.step = lambda self, lr_scale: step(self, lr_scale) | bad
        trainer(tmp_path, ranks=ranks, **SETTINGS).run()

    assert run_in_processes(2, spoiled) == [1, 1]
    assert capfd.readouterr().err.count("ValueError: step 1: the loss is inf") == 2


def test_each_process_of_a_machine_uses_a_different_gpu(monkeypatch):
    ranks = Ranks(rank=11, world_size=16, local_rank=3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert local_device("auto", ranks) == torch.device("cuda:3")
    assert local_device("cuda:1", ranks) == torch.device("cuda:1")
    assert local_device("cpu", ranks) == torch.device("cpu")
    assert local_device("cuda", Ranks()) == torch.device("cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    with pytest.raises(ValueError, match=r"^device is 'cuda:3': PyTorch finds only"):
        local_device("cuda", ranks)


@pytest.mark.parametrize("cuda", [True, False])
@pytest.mark.parametrize("nccl", [True, False])
def test_nccl_is_asked_for_only_where_pytorch_has_it(monkeypatch, cuda, nccl):
    asked, groups = [], []
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    monkeypatch.setattr(dist, "init_process_group", lambda *arguments, **options: asked.append((arguments, options)))
    monkeypatch.setattr(dist, "new_group", lambda **options: groups.append(options))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with processes() as ranks:
        assert ranks.world_size == 2
    backend = "cpu:gloo,cuda:nccl" if cuda and nccl else "gloo"
    assert asked == [((backend,), {})], "with PyTorch's own timeout, so that a lost machine ends the run"
    assert groups == [{"backend": "gloo", "timeout": timedelta(hours=12)}], "to wait for the first process"


@pytest.mark.slow
def test_the_first_process_works_for_all_and_its_failure_ends_all():
    def work(ranks) -> None:
        assert ranks.on_first_process(lambda: {"rank": ranks.rank}) == {"rank": 0}
        assert ranks.gather(ranks.rank, 1 / (1 + ranks.rank)) == [[0, 1, 2], [1, 1 / 2, 1 / 3]]

    def fail(ranks) -> None:
        ranks.on_first_process(lambda: int("a mistake of the user"))

    assert run_in_processes(3, work) == [0, 0, 0]
    assert run_in_processes(2, fail) == [1, 2]


@pytest.mark.parametrize(
    "left_over",
    [
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2", "RANK": "0"},
        {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "", "LOCAL_RANK": ""},
        {"WORLD_SIZE": "two"},
        {"RANK": "first"},
    ],
)
def test_variables_that_torchrun_has_not_set_are_named(monkeypatch, left_over):
    monkeypatch.setattr(os, "environ", left_over)
    with pytest.raises(ValueError, match=r"WORLD_SIZE is set, .*: unset it, or start several processes with torchrun"):
        processes().__enter__()


@pytest.mark.parametrize("left_over", [{}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1", "RANK": ""}, {"RANK": "3"}])
def test_one_process_needs_no_variables(monkeypatch, left_over):
    """A rank that was left over would keep the run from being saved."""
    monkeypatch.setattr(os, "environ", left_over)
    with processes() as ranks:
        assert ranks == Ranks()


def test_the_default_device_does_not_matter(tmp_path):
    """A notebook may have set it to a GPU; meta stands for one."""
    for name in ("expected", "found"):
        (tmp_path / name).mkdir()
    expected = trainer(tmp_path / "expected", max_steps=3, dropout=0.1, eval_every=3).run()

    def on_cpu(args):
        with torch.device("cpu"):
            return Transformer(args)

    torch.set_default_device("meta")
    try:
        found = trainer(tmp_path / "found", max_steps=3, dropout=0.1, eval_every=3, network=on_cpu).run()
    finally:
        torch.set_default_device(None)
    assert found.best_val_loss == expected.best_val_loss
