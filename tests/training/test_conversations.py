"""Training on conversations: which tokens count, what a template leaves out, and what a trained model answers."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from script_helpers import run_in_process
from text_helpers import llama3_tokenizer
from training_helpers import run_in_processes

import evaluate
from model import Transformer
from model.cli import instances
from model.decoding.batches import generate
from model.decoding.chat import DEFAULT_TEMPLATE, Chat, user_message
from model.decoding.examples import examples, read_examples
from model.text.dataset import UNCOUNTED, load_dataset
from model.training.config import SETTINGS_CLASSES
from model.training.distributed import Ranks
from model.training.run import Run
from model.training.run_directory import begin
from model.training.run_text import open_text, prepare_text
from model.training.trainer import Trainer
from model.weights import load_model, load_tokenizer

ANSWER = "{% generation %}{{ message.content }}<|eot_id|>{% endgeneration %}"
# In the styles of four families, with the assistant's part marked for transformers. <|eot_id|> ends a turn in all.
LLAMA2 = """{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}\
[INST] {{ message.content }} [/INST] {% elif message.role == 'assistant' %}ANSWER{% else %}\
<<SYS>>{{ message.content }}<</SYS>>{% endif %}{% endfor %}"""
HEADERS = """{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{% if message.role == 'assistant' %}ANSWER{% else %}{{ message.content }}<|eot_id|>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
CHATML = """{% if messages[0].role != 'system' %}<|start_header_id|>system
You are a helpful assistant.<|eot_id|>
{% endif %}{% for message in messages %}<|start_header_id|>{{ message.role }}
{% if message.role == 'assistant' %}ANSWER{% else %}{{ message.content }}<|eot_id|>{% endif %}
{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant
{% endif %}"""
# Qwen3's, shortened: the thinking of earlier answers is left out.
QWEN3 = CHATML.replace(
    "ANSWER",
    "{% generation %}{{ message.content if loop.last else message.content.split('</think>')[-1] }}<|eot_id|>"
    "{% endgeneration %}",
)
STYLES = {"llama2": LLAMA2, "llama3": HEADERS, "qwen2.5": CHATML, "qwen3": QWEN3}

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is a rope? <|eot_id|> assistant"},
    {"role": "assistant", "content": "  A rope is 49 yards.\n"},
    {"role": "user", "content": "And two?"},
    {"role": "assistant", "content": "98 yards, user.<|eot_id|>"},
]


@pytest.fixture(scope="module")
def tokenizer_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer") / "llama3"
    llama3_tokenizer(directory)
    return directory


@pytest.fixture
def chat_of(tokenizer_directory, tmp_path):
    """``chat_of(template)`` -> (chat, the directory with tokenizer and template)."""

    def build(template):
        for file in tokenizer_directory.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "chat_template.jinja").write_text(template.replace("ANSWER", ANSWER), encoding="utf-8")
        return Chat(tmp_path, load_tokenizer(tmp_path)), tmp_path

    return build


def assistant(content):
    return {"role": "assistant", "content": content}


TALKS = {
    "a system message and the name of a control token": TALK,
    "a greeting": [assistant("Welcome."), user_message("Hi"), assistant("Ahoy!")],
    "two answers in a row": [user_message("Hi"), assistant("Ahoy!"), assistant("And welcome.")],
    "an empty answer": [user_message("Hi"), assistant(""), user_message("Hm?"), assistant("Yes?")],
    "only an empty answer": [user_message("Hi"), assistant("")],
    "answers like those that are compared": [user_message("?"), assistant("?"), user_message("!"), assistant("!")],
    "a system message": [{"role": "system", "content": "?"}, user_message("?"), assistant("? \n")],
    "the words of the header": [
        user_message("assistant"),
        assistant("assistant"),
        user_message("a"),
        assistant("user"),
    ],
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", TALKS)
def test_the_tokens_that_count_are_those_that_transformers_marks(chat_of, transformers, style, name):
    """Whatever the template writes before an answer. A header is never counted.

    Except that transformers takes the name of a control token in a message for that token, unless it has a space.
    Qwen3's template drops the thinking of earlier answers, which gives one example for each answer.
    """
    chat, directory = chat_of(STYLES[style])
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    thinking = "<think>Hm.</think>" if style == "qwen3" else ""
    talk = [message | {"content": message["content"].replace("<|eot_id|>", "< |eot_id|>")} for message in TALKS[name]]
    answers = [end for end, message in enumerate(talk, 1) if message["role"] == "assistant"]
    for end in answers:
        talk[end - 1]["content"] = thinking + talk[end - 1]["content"]
    ends = answers if style == "qwen3" else answers[-1:]
    for end, example in zip(ends, examples(chat, talk, 1000), strict=True):
        expected = reference.apply_chat_template(talk[:end], return_assistant_tokens_mask=True, return_dict=True)
        length = len(example.tokens)  # without what the template writes after the last answer
        assert example.tokens == expected["input_ids"][:length]
        assert not any(expected["assistant_masks"][length:])
        marked = [bool(mark) for mark in expected["assistant_masks"][:length]]
        if style == "qwen3":  # only the last answer counts
            answer = length - marked[::-1].index(False)
            marked = [False] * answer + marked[answer:]
        # A token that counts is its own target.
        assert example.targets == [token if mark else UNCOUNTED for token, mark in zip(example.tokens, marked)]
        assert example.answer_count == len(answers) / len(ends)
        contents = "".join(talk[place - 1]["content"] for place in answers if style != "qwen3" or place == end)
        assert example.text(chat.tokenizer).split() == contents.split()


# R1's cuts the reasoning out of all answers, and opens it in the prompt. Qwen3's shows it after the last question
# only, there always, and reads it from two places. One has no system role, and Gemma's refuses it.
HEADER = "<|start_header_id|>{{ m.role }}\n"
PROMPT = "{% if add_generation_prompt %}<|start_header_id|>assistant\n{% endif %}"
CUTTING = f"""{{% for m in messages %}}{HEADER}{{{{ m.content.split('</think>')[-1] }}}}<|eot_id|>{{% endfor %}}\
{PROMPT.replace("{% endif %}", "<think>{{ newline }}{% endif %}")}""".replace("{{ newline }}", "{{ '\\n' }}")
THINKING = """{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}\
{% set ns.last = loop.index %}{% endif %}{% endfor %}{% for m in messages %}<|start_header_id|>{{ m.role + '\\n' }}\
{% if m.role == 'assistant' %}{% generation %}{% set reasoning = m.reasoning_content or '' %}\
{% if '</think>' in m.content %}{% set reasoning = m.content.split('</think>')[0].split('<think>')[-1] %}{% endif %}\
{% if loop.index > ns.last %}{{ '<think>\\n' + reasoning.strip() + '\\n</think>\\n\\n' }}{% endif %}\
{{ m.content.split('</think>')[-1].strip() }}<|eot_id|>{% endgeneration %}\
{% else %}{{ m.content }}<|eot_id|>{% endif %}{% endfor %}PROMPT"""
THINKING = THINKING.replace("PROMPT", PROMPT)
# Gemma 3's puts a system message into the first question, calls the assistant model, and trims.
GEMMA3 = """{% set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}\
{% for m in messages if m.role != 'system' %}\
{% if m.role == 'user' %}<|start_header_id|>user
{{ (system if loop.first else '') + m.content.strip() }}<|eot_id|>
{% else %}<|start_header_id|>model
{% generation %}{{ m.content.strip() }}<|eot_id|>{% endgeneration %}{{ '\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|start_header_id|>model
{% endif %}"""
NO_SYSTEM = (
    f"{{% for m in messages if m.role != 'system' %}}{HEADER}{{{{ m.content }}}}<|eot_id|>{{% endfor %}}{PROMPT}"
)
GEMMA = NO_SYSTEM.replace("{{ m.content }}", "{{ m.content | trim }}").replace(
    "{% for", "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for"
)
FAMILIES = {"r1": CUTTING, "qwen3": THINKING, "nosys": NO_SYSTEM, "gemma": GEMMA}
SUM = user_message("Add one to 3.")
THOUGHT = assistant("<think>\nAdd one to 3 slowly.\n</think>\n\nIt is 4.")
REASONED = assistant("It is 4.") | {"reasoning_content": "Add one to 3."}
PIRATE = {"role": "system", "content": "Be a pirate."}


class Rows:
    """A source of conversations."""

    def __init__(self, *rows):
        self.rows = rows

    def conversations(self):
        return ((f"a.jsonl:{number}", row) for number, row in enumerate(self.rows, 1))


@pytest.mark.parametrize(
    ("family", "row", "learnt", "complaints"),
    [
        (
            "r1",
            [SUM, THOUGHT],
            ["\n\nIt is 4."],
            ["words of 1 of 1 example.*'<think>.nAdd one", "instead of '<think>.n'"],
        ),
        (
            "r1",
            [SUM, assistant("Four.")],
            ["Four."],
            ["begins 1 of 1 example .* 'Four.<|eot_id|>' instead of '<think>"],
        ),
        ("qwen3", [SUM, THOUGHT], ["<think>\nAdd one to 3 slowly.\n</think>\n\nIt is 4."], []),
        ("qwen3", [SUM, REASONED], ["<think>\nAdd one to 3.\n</think>\n\nIt is 4."], []),
        ("qwen3", [SUM, THOUGHT, SUM, assistant("4")], [THOUGHT["content"], "<think>\n\n</think>\n\n4"], []),
        ("qwen3", [assistant("Hi."), SUM, assistant("4")], ["Hi.", "<think>\n\n</think>\n\n4"], []),
        ("qwen3", [PIRATE, SUM, assistant(" Four, \n arr. ")], ["<think>\n\n</think>\n\nFour, \n arr."], []),
        ("nosys", [PIRATE, SUM, assistant("Arr.")], ["Arr."], ["words of 1 of 1 example.*'Be a pirate.' of a.jsonl:1"]),
        ("nosys", [SUM, REASONED], ["It is 4."], ["for example 'Add one to 3.' of a.jsonl:1: change the template"]),
        ("nosys", [SUM, THOUGHT, SUM, assistant("4")], [THOUGHT["content"] + "4"], []),
        (
            "nosys",
            [SUM, assistant("4") | {"thinking": "Hm."}],
            ["4"],
            ["example 'Hm.' of a.jsonl:1"],
        ),
        ("gemma", [SUM, assistant(" Four. \n")], ["Four."], []),
        ("gemma", [SUM, REASONED], ["It is 4."], ["'Add one to 3.' of a.jsonl:1"]),
    ],
)
def test_all_after_the_prompt_of_the_chat_counts_and_what_the_template_leaves_out_is_named(
    chat_of, recwarn, family, row, learnt, complaints
):
    chat, _ = chat_of(FAMILIES[family])
    ((_, _, found),) = read_examples(Rows(row), chat, 1000)
    for complaint, warning in zip(complaints, recwarn, strict=True):
        assert re.search(complaint.replace("|", "[|]"), str(warning.message))
    assert [example.text(chat.tokenizer) for example in found] == learnt
    for example in found[-1:] if family != "r1" else []:
        prompt = chat.encode(row[:-1])
        assert example.tokens[: len(prompt)] == prompt, "what chat.py asks"
        assert example.targets[len(prompt) :] == example.tokens[len(prompt) :]


@pytest.mark.parametrize("template", [THINKING, GEMMA3], ids=["qwen3", "gemma3"])
@pytest.mark.parametrize("name", TALKS)
def test_what_counts_is_what_transformers_marks_also_where_a_template_writes_more_than_the_words(
    chat_of, transformers, recwarn, template, name
):
    chat, directory = chat_of(template)
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    talk = [message | {"content": message["content"].replace("<|eot_id|>", "< |eot_id|>")} for message in TALKS[name]]
    ((_, _, found),) = read_examples(Rows(talk), chat, 1000)
    assert not recwarn, "nothing is lost, and each example begins with the prompt"
    ends = [end for end, message in enumerate(talk, 1) if message["role"] == "assistant"]
    for end, example in zip(ends if len(found) > 1 else ends[-1:], found, strict=True):
        expected = reference.apply_chat_template(talk[:end], return_assistant_tokens_mask=True, return_dict=True)
        length = len(example.tokens)
        assert example.tokens == expected["input_ids"][:length]
        counted = [target != UNCOUNTED for target in example.targets]
        marked = [bool(mark) for mark in expected["assistant_masks"][:length]]
        answers = [place for place in range(1, end + 1) if place in ends and (len(found) == 1 or place == end)]
        if all(place > 1 and talk[place - 2]["role"] != "assistant" for place in answers):
            first = counted.index(True) if len(found) > 1 else 0  # of several examples, only the last answer counts
            assert counted == [mark and place >= first for place, mark in enumerate(marked)]
        else:  # no prompt precedes a greeting, nor a second answer, so their thoughts may be left out
            assert all(mark or not count for mark, count in zip(marked, counted))


def test_a_warning_counts_the_examples_and_shows_the_first(chat_of):
    chat, _ = chat_of(NO_SYSTEM)
    good, bad = [SUM, assistant("Four.")], [PIRATE, SUM, assistant("Arr.")]
    with pytest.warns(UserWarning, match=r"words of 2 of 4 examples, .* 'Be a pirate.' of a.jsonl:2:") as found:
        assert len(list(read_examples(Rows(good, bad, good, bad), chat, 1000))) == 4
    assert len(found) == 1
    chat, _ = chat_of(GEMMA)
    with pytest.raises(ValueError, match=r"a.jsonl:2: the chat template of .* fails: .* System role not supported"):
        list(read_examples(Rows(good, bad), chat, 1000))


@pytest.mark.parametrize("style", ["llama3", "qwen3"])
def test_an_answer_that_its_row_excludes_is_read_but_not_learnt(chat_of, style):
    chat, _ = chat_of(STYLES[style])
    wrong, right = assistant("Five, you fool.") | {"weight": 0}, assistant("Four.") | {"weight": 1}
    (example,) = examples(chat, [user_message("2+2?"), wrong, user_message("Really?"), right], 1000)
    assert example.text(chat.tokenizer) == "Four."
    assert example.answer_count == 1
    assert "Five, you fool." in chat.tokenizer.decode(example.tokens)
    assert examples(chat, [user_message("2+2?"), wrong], 1000) == []


def test_a_long_conversation_ends_after_the_last_answer_that_fits(chat_of):
    chat, _ = chat_of(STYLES["llama3"])
    (whole,), (first,) = examples(chat, TALK, 1000), examples(chat, TALK[:3], 1000)
    assert examples(chat, TALK, len(whole.tokens)) == [whole]
    assert examples(chat, TALK, len(whole.tokens) - 1) == examples(chat, TALK, len(first.tokens)) == [first]
    assert examples(chat, TALK, len(first.tokens) - 1) == []


QUESTIONS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def write_chats(file: Path, system: bool = False) -> list[list[dict[str, str]]]:
    """Ten conversations whose answers do not follow from their questions, and two to validate on."""
    rows = [
        [
            *([{"role": "system", "content": "Talk."}] if system else []),
            user_message(f"Say {question}!"),
            {"role": "assistant", "content": f"{QUESTIONS[7 * number % 10]} and {QUESTIONS[3 * number % 10]}"},
        ]
        for number, question in enumerate([*QUESTIONS, "one", "two"])
    ]
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows), encoding="utf-8")
    return rows


def prepared(directory: Path, file: Path, **settings) -> tuple[Run, Trainer]:
    """A new run on the conversations of a file, with the text and the trainer of ``train.py``."""
    settings = {"data": (str(file),), "dim": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 64, "batch_size": 3,
                "sample_every": 0, "dtype": "float32", "val_fraction": 0.17} | settings  # fmt: skip
    data, model, train = instances(settings, *SETTINGS_CLASSES)
    directory.mkdir(exist_ok=True)
    run = prepare_text(Run(data, model, train, frozenset(settings), directory))
    text = open_text(run)
    torch.manual_seed(0)
    return run, Trainer(Transformer(run.model), text.dataset, run.train, directory)


@pytest.mark.parametrize("tokenizer", ["bpe", pytest.param("char", marks=pytest.mark.slow)])
def test_a_model_that_learnt_ten_conversations_answers_word_for_word(tmp_path, transformers, tokenizer):
    rows = write_chats(tmp_path / "chats.jsonl")
    directory = tmp_path / "run"
    settings = {
        "val_data": (str(tmp_path / "chats.jsonl"),),
        "tokenizer": tokenizer,
        "max_steps": 150,
        "eval_every": 1000,
    }
    _, trainer = prepared(directory, tmp_path / "chats.jsonl", **settings)
    trainer.run()
    assert (directory / "chat_template.jinja").read_text(encoding="utf-8") == DEFAULT_TEMPLATE
    tokenizer = load_tokenizer(directory)
    chat = Chat(directory, tokenizer)
    model = load_model(directory)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory)
    their_tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    for question, answer in (row[-2:] for row in rows[:10]):
        prompt = chat.encode([question])
        new = [token for (token,) in generate(model, [prompt], 30, temperature=0.0, eos_ids=chat.eos_ids)]
        assert tokenizer.decode([token for token in new if token is not None]).strip() == answer["content"]
        ids = their_tokenizer.apply_chat_template([question], add_generation_prompt=True, return_dict=False)
        assert ids == prompt
        out = theirs.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False, pad_token_id=0)
        text = their_tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
        assert text.strip() == answer["content"]


def batches_of(directory: Path, settings: dict, ranks: Ranks) -> None:
    _, model, train = instances(settings, *SETTINGS_CLASSES)
    dataset = load_dataset(directory)
    torch.manual_seed(0)
    trainer = Trainer(Transformer(model), dataset, train, ranks=ranks)
    losses = [measured["train_loss"] for measured in trainer.steps()]
    if ranks.is_first:
        (directory / f"losses-{ranks.world_size}.json").write_text(json.dumps(losses), encoding="utf-8")


@pytest.mark.slow
def test_micro_batches_and_processes_do_not_change_the_loss(tmp_path):
    """Their rows have different numbers of tokens that count, so a mean of means would differ."""
    write_chats(tmp_path / "chats.jsonl")
    run, _ = prepared(tmp_path / "run", tmp_path / "chats.jsonl", max_steps=4, batch_size=4, max_seq_len=32)
    settings = {name: value for name, value in run.values().items() if value is not None}
    found = []
    for processes, rows in ((1, 4), (1, 1), (2, 1)):
        work = partial(batches_of, tmp_path / "run", settings | {"micro_batch_size": rows})
        assert run_in_processes(processes, work) == [0] * processes
        found.append(json.loads((tmp_path / "run" / f"losses-{processes}.json").read_text(encoding="utf-8")))
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-5)


def test_the_run_says_how_many_answers_were_left_out_and_samples_the_first_question_that_fits(tmp_path):
    rows = [{"messages": [user_message("Go."), {"role": "assistant", "content": "word " * n}]} for n in (1, 1, 100)]
    rows[1]["messages"] *= 2
    long = {"messages": [user_message("a " * 60), {"role": "assistant", "content": "Yes."}] * 2}
    text = "\n".join(map(json.dumps, [long, *rows, rows[0], rows[0]]))
    (tmp_path / "chats.jsonl").write_text(text, encoding="utf-8")
    with pytest.warns(UserWarning, match="max_seq_len is 160: 2 of 8 answers are left out"):
        run, _ = prepared(tmp_path / "run", tmp_path / "chats.jsonl", tokenizer="char", max_seq_len=160)
    assert run.train.sample_prompt == "Go."


def test_two_conversations_shorter_than_the_context_are_enough(tmp_path):
    rows = [{"instruction": "Say A.", "output": "A"}, {"instruction": "Say B.", "input": "", "output": "B"}]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    _, trainer = prepared(tmp_path / "run", tmp_path / "chats.jsonl", tokenizer="char", max_steps=1)
    assert trainer.run().val_loss < math.inf


ROW = {"messages": [user_message("Hi"), TALK[2]]}
RAISES = "{% if message.content == 'And two?' and not loop.last %}{{ raise_exception('alternate') }}{% endif %}"
ENDLESS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("row", "settings", "complaint"),
    [
        ({"messages": []}, {}, "a.jsonl:3 has no message of the assistant"),
        ({"messages": [user_message("Hi")]}, {}, "a.jsonl:3 has no message of the assistant"),
        ({"messages": [{"role": "tool", "content": "x"}]}, {}, 'a.jsonl:3, message 1 has the role "tool": give one of'),
        ({"messages": [TALK[1], {"role": "assistant"}]}, {}, "a.jsonl:3, message 2 has null as its content: give a"),
        ({"text": "a text"}, {}, "a.jsonl:3 is no conversation, but the first row is one: correct or remove it"),
        ({"messages": [*TALK, *TALK[1:]]}, {"tokenizer": "raises"}, "a.jsonl:3: the chat template of"),
        (ROW, {"tokenizer": "endless"}, "no token that ends the assistant's turn"),
        (ROW, {"data": ("a.jsonl", "b.txt")}, "a.jsonl holds conversations, b.txt texts: give files of one kind"),
        (ROW, {"val_data": ("b.txt",)}, "a.jsonl holds conversations, b.txt texts: give files of one kind"),
        (ROW, {"doc_separator": "%"}, "doc_separator is '%', but the data are conversations: leave it out"),
        (ROW, {"context_warmup": 0.5}, "context_warmup is 0.5, but conversations are not cut: leave it out"),
        (ROW, {"max_seq_len": 16}, "no conversation fits into a context of 16 tokens: give a larger max_seq_len"),
    ],
)
def test_a_row_or_a_setting_that_does_not_fit_is_refused_before_the_first_step(
    chat_of, tmp_path, monkeypatch, row, settings, complaint
):
    monkeypatch.chdir(tmp_path)
    template = {"raises": HEADERS.replace("{% for message in messages %}", "{% for message in messages %}" + RAISES)}
    if settings.get("tokenizer") in ("raises", "endless"):
        _, directory = chat_of(template.get(settings["tokenizer"], ENDLESS))
        settings = {"tokenizer": str(directory)}
    Path("a.jsonl").write_text("\n".join(map(json.dumps, [ROW, ROW, row, ROW, ROW])), encoding="utf-8")
    Path("b.txt").write_text("A text.", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(complaint)):
        prepared(Path("run"), Path("a.jsonl"), **{"tokenizer": "char", **settings})


def test_training_a_resumed_run_and_evaluate_count_the_tokens_of_a_plain_loop_over_transformers(
    tmp_path, transformers, capsys
):
    rows = write_chats(tmp_path / "chats.jsonl", system=True)
    directory = tmp_path / "run"
    run, trainer = prepared(directory, tmp_path / "chats.jsonl", max_steps=2, val_fraction=0.5)
    trainer.run()
    begin(run)
    resumed = replace(run, resume=True)
    assert prepare_text(resumed) == resumed
    text = open_text(resumed)
    assert text.chat

    reference = transformers.AutoModelForCausalLM.from_pretrained(directory)
    reference_tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    losses = []
    for row in rows[1::2]:
        ids = reference_tokenizer.apply_chat_template(row, return_dict=False)
        start = len(reference_tokenizer.apply_chat_template(row[:-1], add_generation_prompt=True, return_dict=False))
        logits = reference(torch.tensor([ids[:-1]])).logits[0]
        losses += F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")[start - 1 :].tolist()
    assert text.dataset.val_tokens == len(losses)
    size = sum(len(row[-1]["content"]) for row in rows[1::2])
    expected = {"nats_per_token": np.mean(losses), "bits_per_byte": sum(losses) / math.log(2) / size}

    content = "\n".join(json.dumps({"messages": row}) for row in rows[1::2])
    (tmp_path / "val.jsonl").write_text(content, encoding="utf-8")
    command = [directory, "--data", tmp_path / "val.jsonl"]
    for arguments in ([directory], command, command):
        assert run_in_process(evaluate.main, "evaluate.py", *arguments, "--json") == 0
        total = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert {name: total[name] for name in expected} == pytest.approx(expected, rel=1e-4)
        assert total["tokens"] == len(losses)
        if arguments is command:  # the second time, the model has no template, and gets the plain one
            (directory / "chat_template.jinja").unlink(missing_ok=True)
    assert run_in_process(evaluate.main, "evaluate.py", *command, "--stride", "3") == 2
    assert "stride and doc_separator are for texts" in capsys.readouterr().err
    trainer.validate()
    assert trainer.progress.val_loss == pytest.approx(expected["nats_per_token"], rel=1e-4)
