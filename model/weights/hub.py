"""Models of the Hugging Face Hub, downloaded by their id with the optional ``huggingface_hub`` package."""

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from ..cli.files import RUNS
from .hf_config import read_config
from .tensors import WEIGHTS, indexed_names, weight_files

INDEX = f"{WEIGHTS}.index.json"
# All that is read beside the weights. No code is downloaded.
SMALL_FILES = (
    "config.json", "adapter_config.json", "generation_config.json", INDEX, "chat_template.jinja", "tokenizer.model",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
NO_HUB = (
    "if it is a model on the Hugging Face Hub, run `pip install huggingface_hub tokenizers`, then this command again; "
    "otherwise "
)


def is_hub_id(path: Path) -> bool:
    """Whether a missing path has the form ``org/name``. Below ``runs/`` it is a mistyped run."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", path.as_posix()) is not None and path.parent != RUNS


def hub_advice(path: Path) -> str:
    """The beginning of the advice about a missing path, if it may be an id of the Hub."""
    if not is_hub_id(path):
        return ""
    if not path.parent.is_dir():
        return NO_HUB
    name = path.as_posix()
    return (
        f"{path.parent} is a folder here, so the Hub is not asked; for its model of this name run `hf download {name} "
        f"--local-dir {name}`, otherwise "
    )


def local_directory(model: str | Path, weights: bool = True) -> Path:
    """The directory of a model: the path itself, or for an id of the Hub its snapshot in the Hub's cache.

    Files that are not in the cache are downloaded: config.json before the ``weights``, so that another architecture is
    refused first. Raises ValueError if the Hub does not have the model, or not in this form.
    """
    path = Path(model)
    if os.path.exists(path) or not is_hub_id(path) or path.parent.is_dir():  # then it is mistyped
        return path
    if importlib.util.find_spec("huggingface_hub") is None:
        return path
    name = path.as_posix()
    directory = download(name, SMALL_FILES)
    if not weights:
        return directory
    if not (directory / "config.json").is_file():
        raise ValueError(f"{name} has no config.json on the Hub: GGUF files and adapters are not read")
    read_config(directory / "config.json")
    index = directory / INDEX
    directory = download(name, [*SMALL_FILES, *(indexed_names(index) if index.is_file() else [WEIGHTS])])
    if not weight_files(directory, WEIGHTS):
        raise ValueError(
            f"{name} has no {WEIGHTS} on the Hub: run `hf download {quote(name)} --local-dir {quote(path.name)}` and "
            f"`python convert.py {quote(path.name)} NEW_DIRECTORY`, then give that directory"
        )
    return directory


def download(name: str, files: Sequence[str]) -> Path:
    """Bring these of the model's files to the Hub's cache; returns their directory."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except errors.GatedRepoError:
        reason = f"is gated: accept its terms on https://huggingface.co/{name}, then run `hf auth login`"
    except errors.RepositoryNotFoundError:
        reason = "is neither a path here nor a model on the Hub: correct it, or if it is private, run `hf auth login`"
    except errors.LocalEntryNotFoundError:
        reason = (
            "is not a path here, the Hub cannot be reached, and its cache lacks files of this model: connect, unset "
            "HF_HUB_OFFLINE, or give a directory"
        )
    except Exception as error:  # of the network, of the disk, or for a name that is not an id
        reason = f"cannot be downloaded from the Hub: {error}"
    raise ValueError(f"{name} {reason}")
