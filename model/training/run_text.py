"""The text of a run as tokens, in the run directory."""

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from numpy.lib.stride_tricks import sliding_window_view

from ..cli import instances, quantity
from ..cli.files import write_text
from ..decoding.chat import DEFAULT_TEMPLATE, Chat, find_template, open_chat, user_message
from ..text.dataset import Dataset
from ..text.prepare import IDS, META, check_unchanged, load_dataset, load_tokens, surrounding_tokens, tokenize
from ..text.sources import Documents
from ..text.tokenizer import Tokenizer
from ..text.train_tokenizer import TOKENIZER_KINDS, train_tokenizer
from ..weights import load_tokenizer, save_tokenizer
from ..weights.tokenizers import TEMPLATE
from .config import SETTINGS_CLASSES, DataArgs, Run, read_run_settings
from .conversations import conversation_texts, example_question, tokenize_conversations
from .distributed import Ranks
from .evaluation import sampled_blocks, unigram_loss

FORMAT = 2  # increase when the same files give other tokens, so that those of earlier runs are not taken
MIN_DOCUMENTS = 100  # with fewer documents, a run of a few minutes does not learn what follows BOS
MIN_OCCURRENCES = 50  # of a start_text in the training text, for the model to learn what follows it
# Candidates for start_text: the end of a paragraph, line, sentence or word. The first frequent one is used.
START_TEXTS = ("\n\n", "\r\n\r\n", "\n", "\r\n", ".", "。", " ")


class Text(NamedTuple):
    """The text of a run as tokens."""

    tokenizer: Tokenizer
    dataset: Dataset
    start_text: str  # put before a generation without a prompt
    unigram_loss: float  # nats per token when guessing each token by its frequency alone
    chat: Chat | None = None  # the template, if the text is conversations


def prepare_text(run: Run, directory: Path, ranks: Ranks) -> tuple[Run, Text]:
    """Write the tokenizer and the tokens of a new run into its directory, and open them; to resume, only open them.

    Returns the run with what only the text tells: doc_separator, start_text, and vocab_size if it is trained from
    scratch. Conversations lie in rows as long as the context, so it is decided from then on. The first process writes,
    all open the same files.
    """
    data = run.data
    if not run.resume:
        data = ranks.first(lambda: write_tokens(run, directory))
    dataset = load_dataset(directory, ranks.first(lambda: load_tokens(directory)))
    tokenizer = load_tokenizer(directory, run.model.vocab_size if run.resume or run.train.init_from else None)
    model, train, given = run.model, run.train, run.given
    chat = open_chat(directory, tokenizer) if dataset.row else None
    if chat and not run.resume:
        given |= {"max_seq_len"}
        data = replace(data, start_text=data.start_text or "")
        if not train.sample_prompt:
            text_to_answer = ranks.first(lambda: example_question(data.open(data.data), chat, model.max_seq_len))
            train = replace(train, sample_prompt=text_to_answer)
    if not run.resume:
        check_length(dataset, model.max_seq_len, data.val_fraction)
        if data.start_text is None:
            data = replace(data, start_text=choose_start_text(dataset, tokenizer, model.max_seq_len))
        if not run.train.init_from:
            model = replace(model, vocab_size=tokenizer.vocab_size)
    question = chat.encode([user_message(train.sample_prompt)]) if chat else tokenizer.encode(train.sample_prompt)
    for name, prompt in (("start_text", tokenizer.encode(data.start_text or "")), ("sample_prompt", question)):
        length = len(prompt)
        if length >= model.max_seq_len:
            raise ValueError(
                f"{name} is {quantity(length, 'token')} long, which leaves no room for a sample in a context of "
                f"{model.max_seq_len} (max_seq_len): shorten it"
            )
    text = Text(tokenizer, dataset, data.start_text or "", unigram_loss(dataset, tokenizer.vocab_size), chat)
    return replace(run, data=data, model=model, train=train, given=given), text


def write_tokens(run: Run, directory: Path) -> DataArgs:
    """Write the tokenizer and the tokens of the run's text into its directory; returns its settings.

    If an earlier run beside it was made from the same files in the same way, its tokenizer and tokens are taken.
    """
    data = run.data
    documents = data.open(data.data)
    val_documents = data.open(data.val_data) if data.val_data else None
    if val_documents:
        shared = {os.path.realpath(path) for path in documents.paths()}.intersection(
            os.path.realpath(path) for path in val_documents.paths()
        )
        if shared:
            count = quantity(len(shared), "file")
            warnings.warn(f"{count} of val_data, for example {min(shared)}, is also in data", stacklevel=1)
    are_conversations = documents.has_conversations()
    if val_documents and val_documents.has_conversations() != are_conversations:
        raise ValueError("of data and val_data one holds conversations and the other texts: give files of one kind")
    if data.doc_separator and are_conversations:
        raise ValueError(f"doc_separator is {data.doc_separator!r}, but the data are conversations: leave it out")
    if data.doc_separator is None and not are_conversations:
        data = replace(data, doc_separator=documents.recognize_separator())
    for source in (documents, val_documents):
        if source:
            source.separator = data.doc_separator or None

    if data.tokenizer in TOKENIZER_KINDS:
        tokenizer = None
        vocab_size = run.model.vocab_size if "vocab_size" in run.given else None
        made_by: list[object] = [data.tokenizer, vocab_size]
    else:
        tokenizer = load_tokenizer(Path(data.tokenizer), run.model.vocab_size if run.train.init_from else None)
        made_by = [hashlib.sha256(tokenizer.content).hexdigest(), *surrounding_tokens(tokenizer)]
    state = documents.state()
    if are_conversations:
        made_by += [run.model.max_seq_len, str(find_template(tokenizer.path.parent)[1]) if tokenizer else None]
    made_from = identify(data, [documents, val_documents], made_by)
    earlier = find_tokens(directory.parent, made_from)
    if earlier:
        take_tokens(earlier, directory)
        tokenizer = load_tokenizer(earlier)
    elif tokenizer is None:
        texts = conversation_texts(documents) if are_conversations else documents.texts()
        tokenizer = load_tokenizer(train_tokenizer(texts, directory, data.tokenizer, vocab_size))
    check_unchanged(documents, state)
    tokenizer.eos_ids = tokenizer.eos_ids or (tokenizer.bos_id,)  # a token between documents ends a generated text
    save_tokenizer(tokenizer, directory)
    if earlier:
        return data
    if are_conversations:
        if find_template(directory)[1] is None:
            write_text(directory / TEMPLATE, DEFAULT_TEMPLATE)
        chat = open_chat(directory, tokenizer)
        save_tokenizer(tokenizer, directory)  # again, because the template may end a turn with another token
        context, fraction = run.model.max_seq_len, data.val_fraction
        tokenize_conversations(directory, chat, context, documents, fraction, val_documents, made_from)
    else:
        tokenize(directory, documents, tokenizer, data.val_fraction, val_documents, made_from)
    return data


def identify(data: DataArgs, sources: list[Documents | None], made_by: list[object]) -> str | None:
    """A hash of the files, their size and times, and the settings by which they become tokens; None for a pipe."""
    states = [source.state() if source else [] for source in sources]
    if None in states:
        return None
    facts = [FORMAT, states, data.text_key, data.doc_separator, data.val_fraction, made_by]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def find_tokens(runs: Path, made_from: str | None) -> Path | None:
    """The run in this directory whose tokens were made from the same files in the same way."""
    for file in runs.glob(f"*/{META}") if made_from else ():
        try:
            tokens = load_tokens(file.parent)
            if tokens.made_from == made_from and (file.parent / IDS).exists():
                return file.parent
        except ValueError:  # damaged, or removed
            continue
    return None


def take_tokens(earlier: Path, directory: Path) -> None:
    """Make ``directory`` have the tokens of an earlier run: a hard link, or a copy if the file system has none."""
    if earlier.samefile(directory):
        return
    (directory / IDS).unlink(missing_ok=True)
    try:
        os.link(earlier / IDS, directory / IDS)
    except OSError:
        shutil.copyfile(earlier / IDS, directory / IDS)
    shutil.copyfile(earlier / META, directory / META)


def check_length(dataset: Dataset, context: int, val_fraction: float) -> None:
    """Raise ValueError if the training text is too short for one window, or if the validation text is empty."""
    tokens = len(dataset.train)
    if tokens < context + 1:
        raise ValueError(
            f"the training text is {quantity(tokens, 'token')} long, a context of {context} needs {context + 1}: "
            "give more text, or a smaller max_seq_len"
        )
    if not dataset.val_bytes:
        raise ValueError(f"the validation text is empty: give more text, or a val_fraction above {val_fraction}")


def choose_start_text(dataset: Dataset, tokenizer: Tokenizer, context: int) -> str:
    """Choose the text that generation continues if there is no prompt; empty to continue BOS alone.

    With few documents, BOS has hardly been trained, and the model writes garbage after it. After a text that is
    frequent in the training text, for example a paragraph break, it writes normally. The result is empty if there are
    enough documents, or no such text.
    """
    ids = sampled_blocks(dataset.train)

    def occurrences(tokens: list[int]) -> int:
        return int((sliding_window_view(ids, len(tokens)) == tokens).all(1).sum()) if len(tokens) <= len(ids) else 0

    if occurrences([tokenizer.bos_id]) * len(dataset.train) / len(ids) >= MIN_DOCUMENTS:
        return ""
    for text in START_TEXTS:
        tokens = tokenizer.encode(text, bos=False)
        at_document_end = occurrences([*tokens, tokenizer.bos_id])
        if len(tokens) + 1 < context and occurrences(tokens) - at_document_end >= MIN_OCCURRENCES:
            return text
    return ""


def read_run_data_args(directory: Path) -> DataArgs | None:
    """The text settings of the run in the directory; None if there is no run, or if its settings cannot be read."""
    settings = read_run_settings(directory)
    return instances(settings, *SETTINGS_CLASSES)[0] if settings else None
