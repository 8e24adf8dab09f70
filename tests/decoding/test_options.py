from types import SimpleNamespace

import pytest
import torch

from model.decoding.opened_model import OpenedModel
from model.decoding.options import ModelOptions


@pytest.mark.parametrize(("dtype", "device", "notes"), [("int8", "cuda", 1), ("int8", "cpu", 0), ("auto", "cuda", 0)])
def test_one_note_says_that_int8_is_slower_on_a_card(capsys, dtype, device, notes):
    checkpoint = SimpleNamespace(model=lambda *_, **__: "network")
    opened = OpenedModel(checkpoint, None, ModelOptions(dtype=dtype), torch.device(device), torch.bfloat16)
    assert opened.load() == "network"
    assert capsys.readouterr().err.count("int8 saves memory only") == notes
