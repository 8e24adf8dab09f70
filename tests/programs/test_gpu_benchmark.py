"""benchmarks/gpu.py runs where there is no card, in small sizes."""

import re

import pytest
import torch

from benchmarks import gpu
from model.training.choice import multiplications


@pytest.fixture
def measured(monkeypatch, capsys):
    """``measured(seconds)``: what the program prints, and the cells of its tables by the first of their row."""
    for_decoding = gpu.for_decoding  # compiling for the CPU would take a minute here
    monkeypatch.setattr(gpu, "for_decoding", lambda model, compile: for_decoding(model))
    monkeypatch.setattr(gpu, "memory_rate", lambda device: 2e10)

    def measured(seconds):
        gpu.main(["--small", "--device", "cpu", "--seconds", str(seconds)])
        out = capsys.readouterr().out
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.split("\n")]
        return out, {row[0]: row[1:] for row in rows if row}

    return measured


GENERATION = [f"tiny, {texts}, {how}" for texts in ("1 text", "16 texts") for how in ("greedy", "sampled")]
CHOICE = r"`--minutes 10` for 20,000 tokens chooses \d+ x \d+ .*, eager: [\d,]+ tokens/s"


PROMPTS = r"after a prompt of 20 tokens takes [\d.,]+ ms, after prompts of 21 to 25, each .* [\d.,]+ ms\."
MFU = 3  # the column of the table of training, which is empty on a CPU


def is_figure(cell):
    return float(re.sub("[,%]", "", cell)) >= 0


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("has_time", [True, False])
def test_it_prints_every_row_and_leaves_out_what_it_has_no_time_for(measured, has_time):
    out, rows = measured(1000 if has_time else 0)
    assert re.match(r"cpu, float32; memory reads 20 GB/s; torch 2\.\S+, \d{4}-\d\d-\d\d\n", out)
    for name in ("eager", "eager, Muon", "transformers", *GENERATION):
        cells = [cell for column, cell in enumerate(rows[name]) if name in GENERATION or column != MFU]
        assert all(is_figure(cell) if has_time else cell == "" for cell in cells)
    assert bool(re.search(PROMPTS, out)) == has_time
    assert bool(re.search(CHOICE, out)) == has_time


def test_what_transformers_cannot_do_leaves_the_other_figures(measured, monkeypatch):
    def llama(args):
        raise TypeError("another version of transformers")

    monkeypatch.setattr(gpu, "llama", llama)
    out, rows = measured(1000)
    assert rows["transformers"] == [""] * 5
    assert rows["eager"].pop(MFU) == ""
    assert all(map(is_figure, rows["eager"]))
    for name in GENERATION:
        assert all(map(is_figure, rows[name][:4]))
        assert rows[name][4:] == ["", ""]
    assert re.search(CHOICE, out)


def test_mfu_is_the_share_of_the_rate_of_the_data_sheet(monkeypatch):
    """A step of a second, on a card that multiplies as fast as three quarters of its data sheet."""
    for name, dtype, rate in (
        ("NVIDIA H200", torch.bfloat16, 989e12),
        ("NVIDIA H200", torch.float32, None),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312e12),
        ("Tesla T4", torch.float16, 65e12),
        ("NVIDIA T400", torch.float16, None),
        ("Unknown", torch.float16, None),
    ):
        assert gpu.data_sheet_rate(name, dtype) == rate
    operations = 6 * multiplications(gpu.TINY) * gpu.SMALL.rows * gpu.TINY.max_seq_len
    monkeypatch.setattr(gpu, "step_seconds", lambda run, model, train, text, device: 1.0)
    monkeypatch.setattr(gpu, "data_sheet_rate", lambda name, dtype: 4.0 * operations)
    monkeypatch.setattr(gpu, "product_rate", lambda device, dtype, size: 3.0 * operations)
    head, eager, *_ = gpu.training(gpu.SMALL, torch.device("cpu"), "a card", gpu.Report(1000))
    assert head[4].startswith("MFU of the ")
    assert eager[4:] == ["25%", "33%"]
