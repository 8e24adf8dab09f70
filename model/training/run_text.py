"""The text of a run as tokens, in the run directory."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..cli import quantity
from ..cli.files import write_text
from ..decoding.chat import DEFAULT_TEMPLATE, Chat, find_template, user_message
from ..text.dataset import UNCOUNTED, Conversations, Dataset, load_dataset, start_text
from ..text.sources import Documents
from ..text.tokenize import tokenize
from ..text.tokenizer import Tokenizer, warn_of_lost_text
from ..text.train_tokenizer import TOKENIZER_KINDS, train_tokenizer
from ..weights import load_tokenizer, save_tokenizer
from ..weights.tokenizers import TEMPLATE, tokenizer_files
from .conversations import conversation_texts, example_question, tokenize_conversations
from .run import Run

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

    Returns the run with the settings that follow from the text: doc_separator, vocab_size if it is trained from
    scratch, and the prompt of samples if the text is conversations.
    """
    if run.resume:
        if not tokenizer_files(run.directory):
            raise ValueError(f"{run.directory} has lost its tokenizer.model or tokenizer.json: restore the file")
        return run
    documents = run.data.open(run.data.data)
    data = replace(run.data, doc_separator=documents.separator)
    val_documents = data.open(data.val_data) if data.val_data else None
    are_conversations = documents.has_conversations(*([val_documents] if val_documents else []))
    if are_conversations and data.doc_separator:
        raise ValueError(f"doc_separator is {data.doc_separator!r}, but the data are conversations: leave it out")
    if are_conversations and run.train.context_warmup:
        raise ValueError(f"context_warmup is {run.train.context_warmup:g}, but conversations are not cut: leave it out")

    texts = partial(conversation_texts, documents) if are_conversations else documents.texts
    tokenizer = write_tokenizer(run, texts, documents.text_size())
    model = run.model if run.train.init_from else replace(run.model, vocab_size=tokenizer.vocab_size)
    run = replace(run, data=data, model=model)
    if are_conversations:
        return write_conversations(run, tokenizer, documents, val_documents)
    tokenize(run.directory, documents, tokenizer, data.val_fraction, val_documents)
    tokens = len(load_dataset(run.directory).train)
    if tokens < model.max_seq_len + 1:
        raise ValueError(
            f"the training text is {quantity(tokens, 'token')} long, a context of {model.max_seq_len} needs "
            f"{model.max_seq_len + 1}: give more text, or a smaller max_seq_len"
        )
    return run


def write_tokenizer(run: Run, texts: Callable[[], Iterator[str]], size: int) -> Tokenizer:
    """Train the tokenizer on the texts, ``size`` bytes, or load it, and write it into the directory of the run."""
    file = Path(run.data.tokenizer)
    if run.data.tokenizer in TOKENIZER_KINDS:
        vocab_size = run.model.vocab_size if "vocab_size" in run.decided else None
        file = train_tokenizer(texts(), run.directory, run.data.tokenizer, vocab_size, size)
    tokenizer = load_tokenizer(file, run.model.vocab_size if run.train.init_from else None)
    # Without an end token, BOS is the token between documents, which ends a generated text.
    save_tokenizer(tokenizer, run.directory, tokenizer.eos_ids or (tokenizer.bos_id,))
    warn_of_lost_text(tokenizer, next(texts(), ""))
    return tokenizer


def write_conversations(run: Run, tokenizer: Tokenizer, documents: Documents, val_documents: Documents | None) -> Run:
    """Write the tokens of conversations, and their template.

    Returns the run with a question as the prompt of samples. Answers that do not fit into the context are left out, so
    the context is decided from then on.
    """
    directory, context = run.directory, run.model.max_seq_len
    if find_template(directory)[1] is None:
        write_text(directory / TEMPLATE, DEFAULT_TEMPLATE)
    chat = Chat(directory, tokenizer)
    if chat.eos_ids:  # the template may end a turn with another token
        save_tokenizer(tokenizer, directory, chat.eos_ids)
    tokenize_conversations(directory, chat, context, documents, run.data.val_fraction, val_documents)
    prompt = run.train.sample_prompt or example_question(documents, chat, context)
    return replace(run, train=replace(run.train, sample_prompt=prompt), decided=run.decided | {"max_seq_len"})


def open_text(run: Run) -> Text:
    """Open the tokenizer and the tokens in the directory of a run. Raises ValueError if sample_prompt is too long."""
    tokenizer = load_tokenizer(run.directory, run.model.vocab_size)
    dataset = load_dataset(run.directory)
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


def unigram_loss(dataset: Dataset, vocab_size: int) -> float:
    """Nats per validation token when each is guessed by its frequency in the training text, with add-one smoothing."""
    train_targets, val_targets = dataset.loss_targets
    train = sampled_blocks(train_targets)
    val = sampled_blocks(val_targets[1:])  # the first token is never predicted
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
