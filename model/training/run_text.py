"""The text of a run as tokens, in the run directory."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..cli import instances, quantity
from ..cli.files import write_text
from ..decoding.chat import DEFAULT_TEMPLATE, Chat, find_template, user_message
from ..text.dataset import Dataset, load_dataset, tokenize
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import TOKENIZER_KINDS, train_tokenizer
from ..weights import load_tokenizer, save_tokenizer
from ..weights.tokenizers import TEMPLATE
from .config import SETTINGS_CLASSES, DataArgs, Run, read_run_settings
from .conversations import conversation_texts, example_question, tokenize_conversations
from .distributed import Ranks

# With fewer documents, BOS has hardly been trained, and the model would write garbage after it. So a generation without
# a prompt begins after a line break, if the text has one near its beginning.
MIN_DOCUMENTS = 100
BEGINNING = 1_000_000  # tokens
SAMPLED_TOKENS, SAMPLED_BLOCKS = 5_000_000, 100  # of a long text, to count tokens in


class Text(NamedTuple):
    """The text of a run as tokens."""

    tokenizer: Tokenizer
    dataset: Dataset
    prompt: list[int]  # of the samples during training: sample_prompt, in the template of a chat, or else start_text
    unigram_loss: float  # nats per token when guessing each token by its frequency alone
    chat: Chat | None = None  # the template, if the text is conversations


def prepare_text(run: Run, directory: Path, ranks: Ranks) -> tuple[Run, Text]:
    """Write the tokenizer and the tokens of a new run into its directory, and open them; to resume, only open them.

    Returns the run with what only the text tells: doc_separator, start_text, and vocab_size if it is trained from
    scratch. Conversations lie in rows as long as the context, so it is decided from then on. The first process writes,
    all open the same files.
    """
    data, model, train, given = run.data, run.model, run.train, run.given
    if not run.resume:
        data = ranks.first(lambda: write_tokens(run, directory))

    def lengths() -> list[int]:
        dataset = load_dataset(directory)
        return [len(dataset.train), len(dataset.val)]

    if ranks.first(lengths) != lengths():
        raise ValueError(f"{directory} is not the one of the first process: put out_dir where all machines see it")
    dataset = load_dataset(directory)
    tokenizer = load_tokenizer(directory, model.vocab_size if run.resume or train.init_from else None)
    chat = Chat(directory, tokenizer) if dataset.row else None
    if not run.resume:
        check_length(dataset, model.max_seq_len)
        if chat:
            given |= {"max_seq_len"}
            if not train.sample_prompt:
                question = ranks.first(lambda: example_question(data.open(data.data), chat, model.max_seq_len))
                train = replace(train, sample_prompt=question)
        elif data.start_text is None:
            line_break = tokenizer.encode("\n", bos=False)[-1:]
            has_line_breaks = np.isin(dataset.train[:BEGINNING], line_break).any()
            begins_after_one = dataset.documents < MIN_DOCUMENTS and has_line_breaks
            data = replace(data, start_text="\n" if begins_after_one else "")
        if not train.init_from:
            model = replace(model, vocab_size=tokenizer.vocab_size)
    start_text = data.start_text or ""
    prompt = tokenizer.encode(train.sample_prompt or start_text)
    if chat:
        prompt = chat.encode([user_message(train.sample_prompt)])
    if len(prompt) >= model.max_seq_len:
        raise ValueError(
            f"the prompt of the samples is {quantity(len(prompt), 'token')} long, which leaves no room for a sample in "
            f"a context of {model.max_seq_len} (max_seq_len): shorten sample_prompt or start_text"
        )
    text = Text(tokenizer, dataset, prompt, unigram_loss(dataset, tokenizer.vocab_size), chat)
    return replace(run, data=data, model=model, train=train, given=given), text


def write_tokens(run: Run, directory: Path) -> DataArgs:
    """Write the tokenizer and the tokens of the run's text into its directory; returns its settings."""
    data = run.data
    documents = data.open(data.data)
    val_documents = data.open(data.val_data) if data.val_data else None
    are_conversations = documents.has_conversations()
    if val_documents:
        if val_documents.has_conversations() != are_conversations:
            raise ValueError("of data and val_data one holds conversations and the other texts: give files of one kind")
        files, val_files = (set(map(os.path.realpath, each.paths())) for each in (documents, val_documents))
        if files & val_files:
            warnings.warn(f"{min(files & val_files)} is in data and in val_data", stacklevel=1)
    if are_conversations:
        if data.doc_separator:
            raise ValueError(f"doc_separator is {data.doc_separator!r}, but the data are conversations: leave it out")
    elif data.doc_separator is None:
        data = replace(data, doc_separator=documents.recognize_separator())
    for source in (documents, val_documents):
        if source:
            source.separator = data.doc_separator or None

    tokenizer_file = Path(data.tokenizer)
    if data.tokenizer in TOKENIZER_KINDS:
        texts = conversation_texts(documents) if are_conversations else documents.texts()
        vocab_size = run.model.vocab_size if "vocab_size" in run.given else None
        tokenizer_file = train_tokenizer(texts, directory, data.tokenizer, vocab_size)
    tokenizer = load_tokenizer(tokenizer_file, run.model.vocab_size if run.train.init_from else None)
    tokenizer.eos_ids = tokenizer.eos_ids or (tokenizer.bos_id,)  # a token between documents ends a generated text
    save_tokenizer(tokenizer, directory)
    if not are_conversations:
        tokenize(directory, documents, tokenizer, data.val_fraction, val_documents)
        return data
    if find_template(directory)[1] is None:
        write_text(directory / TEMPLATE, DEFAULT_TEMPLATE)
    chat = Chat(directory, tokenizer)
    save_tokenizer(tokenizer, directory)  # again, because the template may end a turn with another token
    tokenize_conversations(directory, chat, run.model.max_seq_len, documents, data.val_fraction, val_documents)
    return data


def check_length(dataset: Dataset, context: int) -> None:
    """Raise ValueError if the training text is too short for one window."""
    tokens = len(dataset.train)
    if tokens < context + 1:
        raise ValueError(
            f"the training text is {quantity(tokens, 'token')} long, a context of {context} needs {context + 1}: "
            "give more text, or a smaller max_seq_len"
        )


def unigram_loss(dataset: Dataset, vocab_size: int) -> float:
    """Nats per validation token when each is guessed by its frequency in the training text, with add-one smoothing."""
    train, val = sampled_blocks(dataset.train), sampled_blocks(dataset.val[1:])  # the first token is never predicted
    train, val = train[train >= 0], val[val >= 0]  # of conversations, what the loss counts
    val = val[~np.isin(val, dataset.separators)]
    counts = np.bincount(train, minlength=vocab_size) + 1  # (V,)
    return float(-np.log(counts[val] / counts.sum()).mean())


def sampled_blocks(ids: np.ndarray) -> np.ndarray:
    """At most SAMPLED_TOKENS of the ids, in evenly spaced blocks, because single ids are on all pages of the file."""
    if len(ids) <= SAMPLED_TOKENS:
        return np.asarray(ids)
    length = SAMPLED_TOKENS // SAMPLED_BLOCKS
    starts = np.linspace(0, len(ids) - length, SAMPLED_BLOCKS, dtype=np.int64)
    return np.concatenate([ids[start : start + length] for start in starts])


def read_run_data_args(directory: Path) -> DataArgs | None:
    """The text settings of the run in the directory; None if there is no run, or if its settings cannot be read."""
    settings = read_run_settings(directory)
    return instances(settings, *SETTINGS_CLASSES)[0] if settings else None
