"""benchmarks/gpu.py runs where there is no card, in small sizes."""

import re

import pytest

from benchmarks import gpu


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("limit", [1000, 0])
def test_it_prints_every_row_and_leaves_out_what_it_has_no_time_for(monkeypatch, capsys, limit):
    generate = gpu.generate  # compiling for the CPU would take a minute here
    monkeypatch.setattr(gpu, "generate", lambda *arguments, compile, **options: generate(*arguments, **options))
    monkeypatch.setattr(gpu, "memory_rate", lambda device: 2e10)
    gpu.main(["--small", "--device", "cpu", "--seconds", str(limit)])
    out = capsys.readouterr().out
    assert re.match(r"cpu, float32; memory reads 20 GB/s; torch 2\.\S+, \d{4}-\d\d-\d\d\n", out)
    rows = {
        row[0]: row[1:] for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in out.split("\n")) if row
    }
    figures = [rows[name] for name in ("eager", "transformers")]
    figures += [rows[f"tiny, {rows_}, {how}"] for rows_ in ("1 text", "16 texts") for how in ("greedy", "sampled")]
    for cells in figures:
        assert all((float(re.sub("[,%]", "", cell)) >= 0) if limit else cell == "" for cell in cells)
    assert re.search(r"`--minutes 10` for 20,000 tokens chooses \d+ x \d+ .*, eager: [\d,]+ tokens/s", out)
