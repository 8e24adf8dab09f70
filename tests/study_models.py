"""Small models whose weights are so large that positions matter, in memory and on disk, and a text."""

from pathlib import Path

import torch

from model import ModelArgs, Transformer
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_tokenizer, save_model, save_tokenizer
from study.positions import build_scheme

TEXT = "".join(f"line {n}: a rope of {n * n} yards, laid in {n % 7} strands.\n" for n in range(900))


def save_random(home: Path, scheme: str = "rope", max_seq_len: int = 32) -> tuple[Path, Transformer]:
    """The directory ``home / scheme`` with a model of that position encoding and its tokenizer, and the model."""
    tokenizer = load_tokenizer(train_tokenizer([TEXT], home / "tokenizer.model", "bpe", 300))
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": tokenizer.vocab_size}
    model = random_model(ModelArgs(**sizes, max_seq_len=max_seq_len), scheme, std=0.3)
    save_model(model, home / scheme)
    save_tokenizer(tokenizer, home / scheme)
    return home / scheme, model


@torch.no_grad()
def random_model(args: ModelArgs, scheme: str = "rope", std: float = 0.4, **options: float) -> Transformer:
    """A network whose weights are so large that positions change the logits in every scheme."""
    torch.manual_seed(3)
    model = build_scheme(args, scheme, **options)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=std)
    return model.eval()
