"""argparse without abbreviated flags, with suggestions for mistyped ones and one-line errors."""

import argparse
import difflib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Our flags, and how llama.cpp, transformers and nanoGPT spell them. If a spelling stands beside several of our flags,
# the first one that the program has is meant.
OTHER_NAMES = {
    "temperature": "temp do_sample",
    "max_new_tokens": "n n_predict predict max_length max_tokens num_predict",
    "num_samples": "num_return_sequences",
    "prompt": "p start",
    "prompt_file": "f file",
    "seed": "s",
    "stop": "r reverse_prompt stop_strings",
    "chat": "cnv conversation",
    "model": "m model_name_or_path pretrained_model_name_or_path checkpoint ckpt",
    "init_from": "m model model_name_or_path pretrained_model_name_or_path checkpoint ckpt",
    "device": "device_map no_cuda use_cpu ngl gpu_layers n_gpu_layers",
    "dtype": "torch_dtype bf16 fp16 load_in_8bit load_in_4bit outtype",
    "compile": "torch_compile",
    "context": "c ctx_size n_ctx",
    "max_seq_len": "c ctx_size n_ctx block_size max_seq_length model_max_length max_position_embeddings",
    "dim": "n_embd hidden_size",
    "n_heads": "n_head num_attention_heads",
    "hidden_dim": "intermediate_size",
    "qkv_bias": "bias attention_bias",
    "data": "f file dataset dataset_name train_file",
    "val_data": "validation_file",
    "max_steps": "epochs num_train_epochs max_iters lr_decay_iters",
    "lr": "learning_rate",
    "grad_clip": "max_grad_norm",
    "batch_size": "b per_device_train_batch_size per_device_eval_batch_size",
    "micro_batch_size": "ub ubatch_size gradient_accumulation_steps",
    "eval_every": "eval_interval eval_steps save_steps",
    "resume": "resume_from_checkpoint",
}


def nearest(name: str, names: Collection[str]) -> str | None:
    """Which of ``names`` was probably meant: other programs call it ``name``, it begins so, or it is spelt alike."""
    for ours, others in OTHER_NAMES.items():
        if ours in names and name in others.split():
            return ours
    longer = [each for each in names if each.startswith(name)]
    close = longer if len(longer) == 1 else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return close[0] if close else None


HUB_PAGE = re.compile(r"https://(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+).*")


def user_path(text: str) -> Path:
    """The path that a user has written; of the address of a model's page on the Hugging Face Hub, the model's id.

    A shell expands the ``~`` in ``--out_dir ~/x``, but not in ``--out_dir=~/x``.
    """
    return Path(os.path.expanduser(HUB_PAGE.sub(r"\1", text)))


def format_flag(flag: str, text: str) -> str:
    """The flag and its value, in double quotes if it has a space; a long text is truncated."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f'{flag} "{text}"' if " " in text else f"{flag} {text}"


def plain_name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


class Parser(argparse.ArgumentParser):
    """argparse that raises ValueError, which ``run_script`` prints in one line, and suggests the nearest flag.

    ``text_flag`` is suggested for text without a flag; ``--prompt`` in generate.py. ``--help`` shows the ``common``
    flags first, and the ``defaults`` of those that a rule chooses, in words.
    """

    def __init__(
        self,
        text_flag: str | None = None,
        common: Sequence[str] = (),
        defaults: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.text_flag = text_flag
        self.common = common
        self.defaults = defaults or {}
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def format_help(self) -> str:
        """The description has examples, so the usage is one line: the flags follow anyway."""
        arguments = [action for action in self._actions if not action.option_strings]
        forms = {"?": "[{}]", "*": "[{} ...]"}
        places = [forms.get(str(each.nargs), "{}").format(each.metavar) for each in arguments]
        self.usage = self.usage or " ".join([self.prog, *places, "[--flag VALUE ...]"])
        return super().format_help()

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if not unknown:
            return parsed
        name = unknown[0].split("=")[0]
        if self.text_flag and not name.startswith("-"):
            self.error(f"unknown argument {name!r}: did you mean {format_flag(self.text_flag, ' '.join(unknown))}?")
        # What to give instead, by name: flags, in which - is the same as _, and arguments without a flag
        advice = {plain_name(flag): f"did you mean {flag!r}?" for flag in self._option_string_actions}
        for action in self._actions:
            if not action.option_strings:
                advice[action.dest] = f"give {action.metavar} without a flag"
        meant = nearest(plain_name(name), advice)
        self.error(f"unknown argument {name!r}: {advice[meant] if meant else 'try --help'}")

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
