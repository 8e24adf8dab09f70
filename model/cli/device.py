"""Names of devices, told from mistakes before PyTorch, which takes seconds, is imported."""

import re


def check_device(name: str) -> None:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"device is {name!r}: give auto, cpu, cuda, cuda:N or mps")
