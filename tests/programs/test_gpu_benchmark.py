"""benchmarks/gpu.py runs where there is no card, in small sizes."""

import re

import pytest

from benchmarks import gpu


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


def is_figure(cell):
    return float(re.sub("[,%]", "", cell)) >= 0


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("has_time", [True, False])
def test_it_prints_every_row_and_leaves_out_what_it_has_no_time_for(measured, has_time):
    out, rows = measured(1000 if has_time else 0)
    assert re.match(r"cpu, float32; memory reads 20 GB/s; torch 2\.\S+, \d{4}-\d\d-\d\d\n", out)
    for name in ("eager", "transformers", *GENERATION):
        assert all(is_figure(cell) if has_time else cell == "" for cell in rows[name])
    assert bool(re.search(CHOICE, out)) == has_time


def test_what_transformers_cannot_do_leaves_the_other_figures(measured, monkeypatch):
    def llama(args):
        raise TypeError("another version of transformers")

    monkeypatch.setattr(gpu, "llama", llama)
    out, rows = measured(1000)
    assert rows["transformers"] == ["", "", "", ""]
    assert all(map(is_figure, rows["eager"]))
    for name in GENERATION:
        assert all(map(is_figure, rows[name][:4]))
        assert rows[name][4:] == ["", ""]
    assert re.search(CHOICE, out)
