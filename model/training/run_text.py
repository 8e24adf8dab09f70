"""The text of a run as tokens, in the run directory."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..cli import quantity
from ..cli.files import write_text
from ..decoding.chat import DEFAULT_TEMPLATE, Chat, find_template, user_message
from ..text.dataset import UNCOUNTED, Conversations, Dataset, load_dataset, start_text
from ..text.tokenize import tokenize
from ..text.tokenizer import Tokenizer, lost_text
from ..text.train_tokenizer import TOKENIZER_KINDS, train_tokenizer
from ..weights import load_tokenizer, save_tokenizer
from ..weights.tokenizers import TEMPLATE
from .config import DataArgs, Run
from .conversations import conversation_texts, example_question, tokenize_conversations

SAMPLED_TOKENS, SAMPLED_BLOCKS = 5_000_000, 100  # of a long text, to count tokens in


class Text(NamedTuple):
    """The text of a run as tokens."""

    tokenizer: Tokenizer
    dataset: Dataset
    prompt: list[int]  # of the samples: sample_prompt, in the template of a chat, or else that of an empty prompt
    unigram_loss: float  # nats per token when guessing each token by its frequency alone
    chat: Chat | None = None  # the template, if the text is conversations


def prepare_text(run: Run) -> Run:
    """Write the tokenizer and the tokens of a new run into its directory; to resume, they are there.

    Returns the run with what only the text tells: doc_separator, vocab_size if it is trained from scratch, and the
    prompt of samples if the text is conversations. What of a conversation does not fit into the context is left out, so
    the context is decided from then on.
    """
    if run.resume:
        return run
    data, model, train, decided = write_tokens(run), run.model, run.train, run.decided
    tokenizer = load_tokenizer(run.directory, model.vocab_size if train.init_from else None)
    dataset = load_dataset(run.directory)
    if not isinstance(dataset, Conversations):
        check_length(dataset, model.max_seq_len)
    else:
        decided |= {"max_seq_len"}
        if not train.sample_prompt:
            question = example_question(data.open(data.data), Chat(run.directory, tokenizer), model.max_seq_len)
            train = replace(train, sample_prompt=question)
    if not train.init_from:
        model = replace(model, vocab_size=tokenizer.vocab_size)
    return replace(run, data=data, model=model, train=train, decided=decided)


def open_text(run: Run) -> Text:
    """Open the tokenizer and the tokens in the directory of a run. Raises ValueError if sample_prompt is too long."""
    tokenizer = load_tokenizer(run.directory, run.model.vocab_size)
    dataset = load_dataset(run.directory, tokenizer.vocab_size)
    chat = Chat(run.directory, tokenizer) if isinstance(dataset, Conversations) else None
    if chat:
        prompt = chat.encode([user_message(run.train.sample_prompt)])
    else:
        prompt = tokenizer.encode(run.train.sample_prompt or start_text(run.directory))
    if len(prompt) >= run.model.max_seq_len:
        raise ValueError(
            f"the prompt of the samples is {quantity(len(prompt), 'token')} long, which leaves no room for a sample in "
            f"a context of {run.model.max_seq_len} (max_seq_len): shorten sample_prompt"
        )
    return Text(tokenizer, dataset, prompt, unigram_loss(dataset, tokenizer.vocab_size), chat)


def write_tokens(run: Run) -> DataArgs:
    """Write the tokenizer and the tokens of the run's text into its directory; returns its settings."""
    data, directory = run.data, run.directory
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
        vocab_size = run.model.vocab_size if "vocab_size" in run.decided else None
        tokenizer_file = train_tokenizer(texts, directory, data.tokenizer, vocab_size)
    tokenizer = load_tokenizer(tokenizer_file, run.model.vocab_size if run.train.init_from else None)
    eos_ids = tokenizer.eos_ids or (tokenizer.bos_id,)  # a token between documents ends a generated text
    save_tokenizer(tokenizer, directory, eos_ids)
    texts = conversation_texts(documents) if are_conversations else documents.texts()
    loss = lost_text(tokenizer, next(texts, ""))
    if loss:
        warnings.warn(
            f"{tokenizer_file} loses text: {loss}; bits per byte count all of the text, so they are too low",
            stacklevel=1,
        )
    if not are_conversations:
        tokenize(directory, documents, tokenizer, data.val_fraction, val_documents)
        return data
    if find_template(directory)[1] is None:
        write_text(directory / TEMPLATE, DEFAULT_TEMPLATE)
    chat = Chat(directory, tokenizer)
    save_tokenizer(tokenizer, directory, chat.eos_ids or eos_ids)  # the template may end a turn with another token
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
    counted_train, counted_val = dataset.counted
    train = sampled_blocks(counted_train)
    val = sampled_blocks(counted_val[1:])  # the first token is never predicted
    train, val = train[train != UNCOUNTED], val[~np.isin(val, [UNCOUNTED, *dataset.separators])]
    counts = np.bincount(train, minlength=vocab_size) + 1  # (V,)
    return float(-np.log(counts[val] / counts.sum()).mean())


def sampled_blocks(ids: np.ndarray) -> np.ndarray:
    """At most SAMPLED_TOKENS of the ids, in evenly spaced blocks, because single ids are on all pages of the file."""
    if len(ids) <= SAMPLED_TOKENS:
        return np.asarray(ids)
    length = SAMPLED_TOKENS // SAMPLED_BLOCKS
    starts = np.linspace(0, len(ids) - length, SAMPLED_BLOCKS, dtype=np.int64)
    return np.concatenate([ids[start : start + length] for start in starts])
