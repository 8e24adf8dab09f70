import json
import math

import numpy as np
import pytest

from model.text.dataset import Dataset
from model.training.evaluation import bits_per_byte
from model.training.run_directory import Metrics, read_metrics


def test_each_step_writes_a_line_with_its_measured_values(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(1, {"train_loss": 2.5, "lr": 0.001})
    metrics.write(2, {"train_loss": 2.25, "val_loss": 1 / 3})
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "train_loss": 2.5, "lr": 0.001},
        {"step": 2, "train_loss": 2.25, "val_loss": 0.3333333},
    ]


def test_resuming_drops_the_lines_of_later_steps_and_an_incomplete_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(f'{{"step": {n}, "train_loss": {n}.5}}\n' for n in range(1, 6)) + '{"step": 6, "tr', encoding="utf-8"
    )
    Metrics(path, last_step=3).write(4, {"train_loss": 9.0})
    assert [(line["step"], line["train_loss"]) for line in read_metrics(path)] == [(1, 1.5), (2, 2.5), (3, 3.5), (4, 9)]


def test_a_new_run_starts_with_empty_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n', encoding="utf-8")
    Metrics(path)
    assert path.read_text(encoding="utf-8") == ""


def test_removing_the_file_during_the_run_raises_an_error(tmp_path):
    """A new file would hide that the tokenizer and the settings of the run were removed, too."""
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(1, {"train_loss": 2.5})
    metrics.path.unlink()
    for use in (lambda: metrics.write(2, {"train_loss": 2.25}), metrics.sync):
        with pytest.raises(FileNotFoundError):
            use()
    assert not metrics.path.exists()


@pytest.mark.parametrize("foreign", ["step 1 was fine\n", "[1]\n", "\n", '{"step": 1}\n{"st\n{"step": 3}\n'])
def test_a_file_that_is_not_a_metrics_file_is_reported_and_left_unchanged(tmp_path, foreign):
    path = tmp_path / "metrics.jsonl"
    path.write_text(foreign, encoding="utf-8")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged"):
        Metrics(path, last_step=5)
    assert path.read_text(encoding="utf-8") == foreign


def test_bits_per_byte_do_not_depend_on_the_tokenizer():
    """The same text as 80 tokens of 1 byte and as 20 tokens of 4 bytes, predicted equally well."""
    coarse, fine = (Dataset(np.zeros(1), np.zeros(tokens + 1), val_bytes=80, fingerprint="") for tokens in (20, 80))
    assert bits_per_byte(4 * math.log(8), coarse) == pytest.approx(3 * 1.0)
    assert bits_per_byte(math.log(8), fine) == pytest.approx(3.0)
