"""A user's mistake is one line that names it, with exit code 2, and nothing is written: one table for all programs."""

import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from script_helpers import save_run

import chat
import evaluate
import generate
from model import ModelArgs, Transformer
from model.cli import machine
from model.cli.parser import OTHER_NAMES
from model.config import setting_fields
from model.decoding.options import Sampling
from model.text.train_tokenizer import train_tokenizer
from model.training.config import SETTINGS_CLASSES
from model.weights import load_tokenizer, save_model, save_tokenizer

TEXT = "The ropewalk is a long lane where rope is laid. " * 50
CONTEXT = 2400
LONG = "The fox " * 2000
SHORT = "The fox went over the long rope and came back in the evening"  # the longest that is suggested whole
MANY = f"generate.py run --num_samples 1000000 --batch_size {2**40}"
NON_UTF8 = "\udcff"  # as Python decodes the byte 0xff

SMALL = """\
tokenizer = "char"
dim = 16
n_layers = 1
n_heads = 2
max_seq_len = 16
batch_size = 4
max_steps = 4
device = "cpu"
"""

# command, and what its error contains
WRONG = [
    ("train.py nowhere.txt", "nowhere.txt does not exist"),
    ("train.py small.toml small.toml", "small.toml and small.toml are two configs"),
    ("train.py run", "run is a model: --resume run continues its run, --init_from run fine-tunes it"),
    ("train.py text.txt --dim 32 more.txt", "unknown argument 'more.txt': did you mean --data more.txt?"),
    ("train.py small.toml empty.txt", "empty.txt does not exist, is empty, or is neither"),
    ("train.py small.toml text.txt --dim 100 --n_heads 3", "dim is 100, not a multiple of n_heads 3"),
    (f"train.py small.toml text.txt --tokenizer bpe --vocab_size {2**40}", f"vocab_size {2**40} is too large"),
    (f"train.py small.toml text.txt --n_layers {10**9}", "lower dim, n_layers or vocab_size"),
    ("train.py --resume --plan", "--plan is for a new run: leave --resume out"),
    ("train.py --resume run --out_dir theta", "--resume run and --out_dir theta are two runs: give one"),
    ("train.py text.txt --n_head=2", "unknown argument '--n_head': did you mean '--n_heads'?"),
    ("train.py text.txt --learning-rate 1", "unknown argument '--learning-rate': did you mean '--lr'?"),
    ("train.py text.txt --epochs 3", "unknown argument '--epochs': did you mean '--max_steps'?"),
    (f"train.py {NON_UTF8}.txt", 'data is ["?.txt"], which is not UTF-8: rename the file, or retype the value'),
    (f"train.py text.txt --out_dir a{NON_UTF8}", 'out_dir is "a?", which is not UTF-8'),
    ("train.py text.txt --out_dir=--", "out_dir is []: give a path"),
    ("train.py bad.toml text.txt", "bad.toml: unknown setting 'batchsize': did you mean 'batch_size'?"),
    ("train.py text.txt --dropout 2 --warmup 1", "dropout is 2.0: give a number from 0 to 0.95; warmup is 1.0: give a"),
    ("train.py text.txt --network nowhere:Net", "nowhere cannot be imported"),
    ("train.py text.txt --out_dir run", "run holds model.safetensors: give another --out_dir"),
    ("train.py text.txt --init_from run --dim 32", "dim is 32, but run has 16: leave dim out, because"),
    ("train.py text.txt --fsdp --optimizer muon", "optimizer is muon, which needs whole matrices, but fsdp"),
    ("generate.py run --top_p 2 --seed -1", "top_p is 2.0: give a number from 1e-09 to 1; seed is -1"),
    ("generate.py run --max_new_tokens 5000", f"the context of {CONTEXT} (max_seq_len): shorten it, lower"),
    (f"generate.py run --prompt a --prompt '{LONG}'", "prompt 2 has"),
    (f"generate.py run --prompt {NON_UTF8}", "not UTF-8"),
    (f"{MANY} --device cpu --max_new_tokens 2000", "1,000,000 texts of"),
    ("generate.py run --stop ''", "stop is empty"),
    ("generate.py run --prompt_file=~/prompts.txt", f"{Path.home() / 'prompts.txt'}: No such file"),
    ("generate.py run --prompt_file rows.csv", "rows.csv is no list of prompts: give text, one prompt per line, or"),
    ("generate.py run --prompt_file rows.jsonl", 'rows.jsonl:2 has no prompt: write {"prompt": "text"}'),
    ("generate.py run --chat --prompt x", "has no chat template, neither in tokenizer_config.json nor as"),
    ("generate.py run --prompt x --system x", "for the template of a chat: add --chat"),
    ("generate.py run --chat", "add --prompt, or start chat.py to chat in the terminal"),
    ("generate.py run --chat --prompt x --template_var x", "template_var is 'x': write NAME=VALUE, for example"),
    ("chat.py run --context 5000", f"context is 5000: the network allows 1 to {CONTEXT}"),
    ("generate.py run --promt=a", "unknown argument '--promt': did you mean '--prompt'?"),
    ("generate.py run --max_new 3", "did you mean '--max_new_tokens'?"),  # no abbreviations
    ("generate.py run --temp 0.5", "unknown argument '--temp': did you mean '--temperature'?"),  # or template_var
    ("generate.py run -p a -n 3", "unknown argument '-p': did you mean '--prompt'?"),
    ("generate.py run --num_return_sequences=2", "did you mean '--num_samples'?"),
    ("generate.py --model run", "unknown argument '--model': give MODEL without a flag"),
    ("chat.py -m run", "unknown argument '-m': give MODEL without a flag"),
    ("chat.py run --ctx-size 8", "did you mean '--context'?"),
    ("chat.py run --sys a", "did you mean '--system'?"),
    ("train.py text.txt -c 8", "did you mean '--max_seq_len'?"),
    ("train.py text.txt --model run", "did you mean '--init_from'?"),
    ("train.py text.txt --eval_interval 8", "did you mean '--eval_every'?"),
    ("train.py text.txt --zzz", "unknown argument '--zzz': try --help"),
    ("evaluate.py run --dataset text.txt", "did you mean '--data'?"),
    ("convert.py run new --torch_dtype float16", "did you mean '--dtype'?"),
    ("generate.py run --seed 3.5", "seed is '3.5': give a whole number"),
    (f"generate.py run {SHORT}", f"unknown argument 'The': did you mean --prompt \"{SHORT}\"?"),
    ("generate.py", "start one with `python train.py`"),
    ("generate.py started", "started is a run without weights yet: they are saved at its first validation"),
    ("generate.py nowhere", "nowhere does not exist"),
    (f"generate.py '{LONG}'", 'did you mean --prompt "The fox'),
    ("evaluate.py run", "is not a run of train.py: name the text to score with --data"),
    ("evaluate.py run --stride 3", "cannot be used with the run's validation text: add --data"),
    ("evaluate.py run --data text.txt --stride 2401", "stride is 2401: windows are 2,400 tokens long"),
    ("evaluate.py run text.txt", "did you mean --data text.txt?"),
    ("convert.py other x --to hf", "other has no config.json"),
    ("convert.py run other --to hf", "other exists"),
    ("convert.py run a/b --to hf", "a is not a directory"),
    ("generate.py y.tokenizer.bin", "`python convert.py y.tokenizer.bin NEW_DIRECTORY`"),
    ("generate.py run --tokenizer y.tokenizer.bin", "y.tokenizer.bin is not a SentencePiece model: give one"),
    ("convert.py run x --to llama2c --dtype bfloat16", "float32"),
    ("convert.py run x --to hf --tokenizer other/tokenizer.model", "300 tokens, the model 290"),
    ("convert.py theta x --to llama2c", "rope_theta is 5"),
    ("convert.py run y.bin --to llama2c", "y.tokenizer.bin exists"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model and its tokenizer (run), and what the table names."""
    path = tmp_path_factory.mktemp("folder")
    size = {"dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 290, "max_seq_len": CONTEXT}
    torch.manual_seed(0)
    save_run(path / "run", TEXT, scale=1, **size)
    save_tokenizer(load_tokenizer(train_tokenizer([TEXT], path / "unused.model", vocab_size=300)), path / "other")
    save_model(Transformer(ModelArgs(**size, rope_theta=5e5)), path / "theta")
    save_tokenizer(load_tokenizer(path / "run"), path / "theta")
    (path / "text.txt").write_text(TEXT, encoding="utf-8")
    (path / "started").mkdir()
    (path / "started" / "config.toml").touch()
    (path / "theta" / "config.toml").write_text('data = "text.txt"', encoding="utf-8")
    (path / "small.toml").write_text(SMALL, encoding="utf-8")
    (path / "bad.toml").write_text("batchsize = 3", encoding="utf-8")
    (path / "empty.txt").touch()
    (path / "rows.csv").write_text("prompt\nThe rope\n", encoding="utf-8")
    (path / "rows.jsonl").write_text('{"prompt": "The rope"}\n{"text": "The rope"}\n', encoding="utf-8")
    (path / "y.tokenizer.bin").touch()
    return path


@pytest.fixture
def run(start):
    """``run(command)`` -> (exit code, stdout, stderr)."""

    def call(command):
        program, *arguments = shlex.split(command)
        return start(import_module(program.removesuffix(".py")), *arguments)

    return call


@pytest.mark.parametrize(("command", "words"), WRONG)
def test_a_mistake_is_one_line_and_nothing_is_written(folder, tmp_path, monkeypatch, run, command, words):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "free_memory", lambda device: 64 * 10**9)
    before = sorted(Path().rglob("*"))
    code, out, err = run(command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{command.split()[0]}: error: ")
    assert words in err
    assert sorted(Path().rglob("*")) == before


LOAD = "model.decoding.opened_model.OpenedModel.load"


@pytest.mark.parametrize(
    ("command", "allocates", "advice"),
    [
        ("train.py small.toml text.txt", "model.fast.loss.NextTokenLoss.forward", "lower --micro_batch_size, or"),
        (
            "generate.py run --prompt a",
            "model.decoding.opened_model.OpenedModel.load",
            "give a smaller model, or lower --max_new_tokens",
        ),
        ("evaluate.py run --data text.txt", "model.decoding.opened_model.OpenedModel.load", "give a smaller model"),
    ],
)
def test_too_little_memory_names_the_device_and_what_helps(
    folder, tmp_path, monkeypatch, run, command, allocates, advice
):
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "folder", symlinks=True))
    monkeypatch.setattr(allocates, lambda *_, **__: torch.empty(2**60))
    code, _, err = run(f"{command} --device cpu")
    assert code == 2
    assert f"error: cpu has too little free memory: {advice}" in err.splitlines()[-1]


def test_each_name_that_is_used_elsewhere_leads_to_what_a_program_has():
    programs = [chat.Options, evaluate.Options, generate.Options, Sampling, *SETTINGS_CLASSES]
    ours = {*setting_fields(*programs), "prompt", "prompt_file", "stop", "system", "template_var", "model", "resume"}
    assert OTHER_NAMES.keys() <= ours
    others = {name for names in OTHER_NAMES.values() for name in names.split()}
    assert ours & others == {"model"}, "train.py has --init_from"


@pytest.mark.parametrize("program", ["train", "generate", "chat", "evaluate", "convert", "runs"])
def test_help_begins_with_one_line_of_usage_and_three_examples(program, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [program, "--help"])
    with pytest.raises(SystemExit):
        import_module(program).main()
    usage, _, purpose, _, *examples = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"usage: {program}\.py .*\[--flag VALUE \.\.\.\]", usage)
    assert purpose.endswith(".")
    assert [line.startswith(f"python {program}.py") for line in examples[:4]] == [True, True, True, False]


def test_the_help_of_train_py_shows_the_usual_flags_first_and_no_default_that_does_not_hold(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--help"])
    with pytest.raises(SystemExit):
        import_module("train").main()
    text = capsys.readouterr().out
    first = re.findall(r"^  (--\w+)", text.partition("options:")[2].partition("\n\n")[0], re.MULTILINE)
    assert first[:4] == ["--resume", "--plan", "--data", "--minutes"]
    assert {"--out_dir", "--init_from", "--tokenizer", "--dim", "--compile", "--seed"} <= {*first}
    assert len(first) <= 12
    words = " ".join(text.split())
    assert "--dim N width of the residual stream [at least 1] (default: chosen; 256 with --max_steps)" in words
    assert "(default: chosen; false with --max_steps)" in words
    assert "tokens in the vocabulary [at least 1] (default: chosen for the text; with char its characters)" in words
