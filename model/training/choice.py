"""Choose the settings that ``--minutes`` leaves open: the size of the model, its batches, and the schedule.

The rule: train the largest model of LADDER that sees enough tokens in the minutes. Enough are 2,800 times the square
root of the number of parameters in its layers, and as many again for each 8,192 pieces of the vocabulary, or 10 passes
over the text if these are fewer. A model with more than 25 parameters for each token of the text would memorise it, and
is left out. To know how many tokens each of the models would see, they are timed, from the smallest one on, on a GPU
with the batch that they would be trained with. docs/scaling.md works through one choice by hand.
"""

import math
import os
import shutil
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils._triton import has_triton

from ..cli import print_note
from ..config import ModelArgs
from ..text.dataset import Conversations, Dataset
from .config import SIZE, UNSET, TrainArgs
from .distributed import Machine
from .estimate import check_training_memory, count_parameters
from .run import Run
from .trainer import VALIDATION_SHARE, Trainer

# Each has up to about twice as many parameters in its layers as the one before. Small models have few layers, because a
# few wide products are faster than many narrow ones.
LADDER = (  # dim, n_layers, n_heads, n_kv_heads
    (96, 3, 3, 3),
    (128, 3, 4, 4),
    (128, 4, 4, 2),
    (160, 5, 5, 5),
    (224, 5, 7, 7),
    (288, 6, 9, 9),
    (384, 7, 6, 3),
    (512, 8, 8, 4),
    (704, 9, 11, 11),
    (1024, 10, 16, 8),
)
# A larger model learns more from each token, and a smaller one sees more tokens. Where these balance, the tokens grow
# with the square root of the parameters (benchmarks/README.md). A larger vocabulary needs more tokens, because each
# piece is rarer.
TOKENS_PER_ROOT, PIECES = 2800, 8192
# Passes over the text. With 0.7 million parameters and 285,000 tokens, 9 and 10 passes reached a loss of 4.69, and 12
# passes 4.82 at best and 5.01 at the end. With 50,000 tokens, 9, 10 and 12 passes reached 2.73, 2.74 and 2.74.
MAX_PASSES = 10
# Parameters in the layers, for each token of the text. In 12 passes over 46,000 tokens, 0.7 million parameters reached
# a loss of 3.15 at the end, and 6 million reached 3.25 at best and 3.58 at the end.
MAX_PARAMETERS_PER_TOKEN = 25
# Passes in fine-tuning, whose learning rate is lower: 12 reached a loss of 3.71, and 10 of 3.76 (the demo on
# tinyshakespeare). For a model that would memorise the text, 3 were better than 2 and 4, on two small texts.
FINE_TUNING_PASSES, MEMORISING_PASSES = 12, 3
TRAINING_SHARE = 0.93  # of the minutes; the rest is for validations, checkpoints and samples
MAX_ROWS = 64  # sequences of a step, in each process
MIN_STEPS = 30  # of fine-tuning; in fewer the learning rate has hardly risen before it falls
# Half of the context for this part of the run, compared with the whole context from the first step in equal time: after
# 2 to 7 million tokens the loss was equal or up to 7% lower, after 10 million 1% higher (benchmarks/README.md).
CONTEXT_WARMUP, SHORT_RUN = 0.6, 8_000_000  # of the run; tokens
TIMED_OPERATIONS = 1e11  # floating-point operations of a step timed on a CPU: a tenth of a second to a few seconds
# In a step of a large model on fewer tokens, the optimizer takes most of the time, so the measured speed is too low.
FEWEST_TIMED_TOKENS = 256
# Embeddings are tied if the ``memorization`` of the run would be above this. On two texts, tying raised the loss by 3%
# and 9% at a memorization of 13 and 23, hardly changed it at 26, and lowered it by 4% and 3% at 38 and 54.
TIE_ABOVE = 30
# Compiling a training step for a card takes up to a minute. On an H200, 85 million parameters then saw 588,816 tokens/s
# instead of 300,519 (benchmarks/README.md). 10,000 steps take almost three minutes if each costs only its launches.
COMPILE_MINUTES, COMPILE_STEPS = 5, 10_000


def choose(run: Run, dataset: Dataset, machine: Machine, *, with_speed: bool = False) -> tuple[Run, float | None]:
    """Choose the settings that ``minutes`` leaves open, and whether to compile.

    Returns the run with the chosen settings, and the tokens per second to expect, if it has minutes or ``with_speed``.
    Raises ValueError if the run does not fit into the memory.
    """
    speed: float | None = None
    if run.has_size:  # before it is timed, because building a model that does not fit takes minutes
        check_training_memory(run.model, replace(run.train, micro_batch_size=1), machine)
    if run.needs_choice or with_speed:
        print_note("timing steps on this machine, to know how many fit into the time")
    if run.needs_choice:
        run, speed = choose_model(run, dataset, machine)
    else:
        if run.train.compile is None:  # decided once, so that a run that is resumed stays what it was
            is_long = run.train.step_limit >= COMPILE_STEPS and not run.resume
            run = with_compile(run, is_long and can_compile(run, dataset, machine))
        if with_speed:
            speed = measure_speed(run, run.model, run.train, dataset, machine)
    check_training_memory(run.model, run.train, machine)
    return run, speed


def choose_model(run: Run, dataset: Dataset, machine: Machine) -> tuple[Run, float]:
    """Choose the size, and whether to compile; returns the run with its tokens per second.

    Only the chosen model is compiled, once, in the batch that it is trained with. The run is compiled if that is
    faster, or if the user has asked for it.
    """
    models = [run.model]
    if not run.has_size:
        # The last two of SIZE are computed from the others.
        models = [replace(run.model, **dict(zip(SIZE, (*size, UNSET, UNSET)))) for size in LADDER]
    planned, speed = largest_that_sees_enough(with_compile(run, False), models, dataset, machine)
    is_long = run_seconds(planned, speed, dataset) >= 60 * COMPILE_MINUTES
    if run.train.compile or (run.train.compile is None and is_long and can_compile(run, dataset, machine)):
        print_note("compiling the steps to time them: up to a minute (--no-compile leaves it out)")
        train = planned.train
        compiled = with_compile(run, True).fill(batch_size=train.batch_size, micro_batch_size=train.micro_batch_size)
        compiled_speed = measure_speed(compiled, planned.model, replace(train, compile=True), dataset, machine)
        if run.train.compile or compiled_speed > speed:
            return plan(compiled, planned.model, compiled_speed, dataset, machine), compiled_speed
    return planned, speed


def largest_that_sees_enough(
    run: Run, models: Sequence[ModelArgs], dataset: Dataset, machine: Machine
) -> tuple[Run, float]:
    """Time the models, from the first and smallest one on, until one is too large or too slow.

    Returns the run planned for the largest that is neither, or else for the smallest, and its tokens per second.
    """
    chosen: tuple[Run, float] | None = None
    for model in models:
        if chosen and (memorises(model, dataset) or not fits(model, replace(run.train, micro_batch_size=1), machine)):
            break
        try:
            planned, speed = timed_plan(run, model, dataset, machine)
        except torch.OutOfMemoryError:  # of a card, whose memory is only estimated before
            if not chosen:
                raise
            break
        enough = TOKENS_PER_ROOT * math.sqrt(count_parameters(model).hidden) * (1 + model.vocab_size / PIECES)
        if chosen and training_tokens(run, speed) < min(enough, MAX_PASSES * len(dataset.train)):
            break
        chosen = planned, speed
    assert chosen
    return chosen


def with_compile(run: Run, compile: bool) -> Run:
    return replace(run, train=replace(run.train, compile=compile))


def can_compile(run: Run, dataset: Dataset, machine: Machine) -> bool:
    """Whether steps may be compiled without being asked to.

    Triton, which PyTorch for Windows lacks and cards before Volta cannot run, needs a C compiler and the headers of
    Python. Each length of a batch is compiled: conversations have many, and a run with ``context_warmup`` has two.
    """
    if machine.device.type != "cuda" or machine.processes > 1 or run.train.network is not None:
        return False
    if run.train.context_warmup or isinstance(dataset, Conversations):
        return False
    compiler = os.environ.get("CC", "gcc").split()[0]  # it may be "ccache gcc"
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return any(map(shutil.which, (compiler, "clang"))) and has_headers and has_triton()


def run_seconds(run: Run, speed: float, dataset: Dataset) -> float:
    """The time of a run with minutes at ``speed`` tokens per second; it may end earlier, after max_steps."""
    step_tokens = run.train.batch_size * dataset.window_tokens(run.model.max_seq_len)
    return min(60 * (run.train.minutes or 0), run.train.step_limit * step_tokens / speed)


def timed_plan(run: Run, model: ModelArgs, dataset: Dataset, machine: Machine) -> tuple[Run, float]:
    """The run planned for ``model`` at the speed of its steps, and this speed in tokens per second.

    On a CPU a few tokens show the speed. On a GPU a step of few tokens takes as long as one of many, because it mostly
    waits for the launches of its kernels. So the largest batch is timed first there. If the plan for its speed has a
    smaller batch, that one is timed and planned, until the planned batch is not smaller than the timed one.
    """
    if machine.device.type == "cpu":
        sample, few = timed_step(run, model, dataset, machine)
        speed = measure_speed(run, sample, few, dataset, machine)
        return plan(run, model, speed, dataset, machine), speed
    planned = replace(run, model=model).fill(batch_size=MAX_ROWS * machine.processes)
    planned = planned.fill(micro_batch_size=fitting_micro_batch(model, planned.train, machine))
    while True:
        timed = planned.train.batch_size
        speed = measure_speed(run, planned.model, planned.train, dataset, machine)
        planned = plan(run, model, speed, dataset, machine)
        if planned.train.batch_size >= timed:
            return planned, speed


def memorises(model: ModelArgs, dataset: Dataset) -> bool:
    """Whether the model has so many parameters that it would learn the text by heart."""
    return count_parameters(model).hidden > MAX_PARAMETERS_PER_TOKEN * len(dataset.train)


def training_tokens(run: Run, speed: float) -> float:
    """The tokens that ``speed`` tokens per second leave time for."""
    return 60 * TRAINING_SHARE * (run.train.minutes or 0) * speed


def plan(run: Run, model: ModelArgs, speed: float, dataset: Dataset, machine: Machine) -> Run:
    """``model``, and the settings to train it with for the minutes at ``speed`` tokens per second.

    A run ends before its minutes if these would be too many passes over the text, unless the user has given the size
    of a new model, or the steps.
    """
    text_tokens = len(dataset.train)
    fine_tuning = run.train.init_from is not None
    chooses_size = not run.has_size
    run = replace(run, model=model)
    if chooses_size:
        run = run.fill(dim=model.dim, n_layers=model.n_layers, n_heads=model.n_heads, n_kv_heads=model.n_kv_heads)

    tokens = training_tokens(run, speed)
    passes = MAX_PASSES
    if fine_tuning:
        passes = MEMORISING_PASSES if memorises(model, dataset) else FINE_TUNING_PASSES
    ends_early = tokens > passes * text_tokens and run.train.max_steps is None and (fine_tuning or chooses_size)
    if ends_early:
        tokens = passes * text_tokens

    context = model.max_seq_len
    if fine_tuning:  # a context for MIN_STEPS steps of two sequences: a power of two, at least 64
        context = min(context, 2 ** max(6, int(math.log2(tokens / (2 * MIN_STEPS)))))
    run = run.fill(max_seq_len=context)
    run = run.fill(batch_size=planned_batch(run, tokens, dataset, machine))
    step_tokens = run.train.batch_size * window_tokens(run.model, dataset)
    run = run.fill(max_steps=max(1, round(tokens / step_tokens)) if ends_early else None)
    if run.train.max_steps is not None:
        tokens = min(tokens, run.train.max_steps * step_tokens)

    # This grows with the passes over the text, and with the parameters for each of its tokens.
    memorization = tokens / text_tokens * math.sqrt(count_parameters(run.model).total / text_tokens)
    if chooses_size:
        run = run.fill(tie_embeddings=memorization > TIE_ABOVE)  # a step takes the same time
    # Weight decay keeps a model from memorising the text. Where it would not memorise, more than 0.1 raises the loss,
    # and in fine-tuning more would shrink the weights that the model has learnt.
    weight_decay = TrainArgs.weight_decay if fine_tuning else min(0.1 * max(1.0, memorization / 5) ** 1.5, 0.8)

    # What is validated follows from the text alone, so that two models can be compared; how often, from the clock.
    validated = min(run.train.eval_tokens, len(dataset.val))
    between = max(tokens / 10, validated / VALIDATION_SHARE)  # tokens of training between two validations
    steps = max(1, int(tokens / step_tokens))
    run = run.fill(eval_every=min(steps, max(1, int(between / step_tokens))))

    if run.train.compile:
        run = run.fill(compile=True)  # decided from then on, so that --plan prints it
    # Not in fine-tuning, whose model knows its context, nor for conversations, which would be cut, nor for compiled
    # code, which is for one length.
    grows = tokens < SHORT_RUN and not (fine_tuning or run.train.compile or isinstance(dataset, Conversations))
    return run.fill(
        decay_start=0.1,
        context_warmup=CONTEXT_WARMUP if grows else 0.0,
        weight_decay=round(weight_decay, 1),
        sample_every=2 * run.train.eval_every,
        micro_batch_size=fitting_micro_batch(run.model, run.train, machine),
    )


def planned_batch(run: Run, tokens: float, dataset: Dataset, machine: Machine) -> int:
    """The sequences of a step in a run on ``tokens`` tokens.

    Their tokens grow with the square root of ``tokens``, and are at least a quarter as many as the vocabulary has
    pieces, because otherwise most pieces are not in the batch.
    """
    window = window_tokens(run.model, dataset)
    step_tokens = max(1024 * math.sqrt(tokens / 1e6), run.model.vocab_size / 4)
    rows = 2 ** round(math.log2(step_tokens / window))
    rows = max(2, min(rows, MAX_ROWS * machine.processes))
    if run.train.init_from is not None:
        rows = max(1, min(rows, int(tokens / (MIN_STEPS * window))))
    return machine.processes * max(1, round(rows / machine.processes))


def multiplications(model: ModelArgs) -> int:
    """The multiplications of a forward pass for each token, in matrices and in attention to half of the context."""
    attention = model.n_layers * model.n_heads * model.head_dim * model.max_seq_len
    return count_parameters(model).hidden + model.dim * model.vocab_size + attention


def fits(model: ModelArgs, train: TrainArgs, machine: Machine) -> bool:
    """Whether the run fits into the memory that is free."""
    try:
        check_training_memory(model, train, machine)
    except ValueError:
        return False
    return True


def fitting_micro_batch(model: ModelArgs, train: TrainArgs, machine: Machine) -> int:
    """The sequences that a process computes at once: its share of the batch, halved until it fits into the memory."""
    rows = train.batch_size // machine.processes
    while rows > 1 and not fits(model, replace(train, micro_batch_size=rows), machine):
        rows = (rows + 1) // 2
    return rows


def timed_step(run: Run, model: ModelArgs, dataset: Dataset, machine: Machine) -> tuple[ModelArgs, TrainArgs]:
    """The model and the settings for a step of about TIMED_OPERATIONS, so that a large model takes seconds."""
    tokens = min(2048, max(FEWEST_TIMED_TOKENS, int(TIMED_OPERATIONS / (6 * multiplications(model)))))
    model = replace(model, max_seq_len=min(tokens, window_tokens(model, dataset)))
    rows = max(1, tokens // model.max_seq_len)
    return model, replace(run.train, batch_size=machine.processes * rows, micro_batch_size=None)


def window_tokens(model: ModelArgs, dataset: Dataset) -> int:
    """The tokens of a sequence in a batch; a conversation may be shorter than the context.

    One fewer than the text has, if that is a single conversation, because its last token is only a target.
    """
    return min(model.max_seq_len, dataset.window_tokens(model.max_seq_len), len(dataset.train) - 1)


def measure_speed(run: Run, model: ModelArgs, train: TrainArgs, dataset: Dataset, machine: Machine) -> float:
    """The tokens per second of training ``model`` with the batch and the dtype of ``train``.

    One process is timed, and the others are assumed to be as fast; the result is the speed of all. A model that is
    sharded may not fit into one process: its time is computed from those of one and of two layers.

    A step takes time for each position. In batches of conversations some of these are padding.
    """
    rows = train.batch_size // machine.processes
    context = window_tokens(model, dataset)
    model = replace(model, max_seq_len=context)
    share = replace(train, batch_size=rows, context_warmup=0.0)  # steps of the whole context, which are the slower ones
    if train.fsdp and machine.processes > 1:
        shallow = [replace(model, n_layers=number) for number in (1, 2)]
        one, two = (step_seconds(run, each, share, dataset, machine.device) for each in shallow)
        seconds = one + (model.n_layers - 1) * max(0.0, two - one)
    else:
        seconds = step_seconds(run, model, share, dataset, machine.device)
    longest = run.model.max_seq_len  # of a conversation, even if a shorter context is timed
    tokens_per_position = dataset.window_tokens(longest) / dataset.padded_tokens(longest, rows)
    return machine.processes * rows * context / seconds * tokens_per_position


def step_seconds(run: Run, model: ModelArgs, train: TrainArgs, dataset: Dataset, device: torch.device) -> float:
    """The time of the fastest step of several, because other programs only slow steps down. The first is a warm-up.

    Its batch is full: windows of ``max_seq_len`` tokens, which conversations are cut into here.
    """
    torch.manual_seed(train.seed)
    trainer = Trainer(run.network(model).to(device), dataset.as_windows(), train)
    trainer.parallel_loss.train()
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds[1:]) < 0.5:
        begin = time.perf_counter()
        trainer.step(1.0)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)  # the optimizer is still running
        seconds.append(time.perf_counter() - begin)
    if train.compile:
        torch.compiler.reset()  # or else the next network would be compiled for sizes that change
    return min(seconds)
