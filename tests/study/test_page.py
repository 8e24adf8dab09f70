"""The page in node, compared with Python: logits, greedy tokens, tokenizers; and the contents of the written file."""

import base64
import hashlib
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from text_helpers import trained_by_sentencepiece

from model import Transformer, attention
from model.decoding.options import Sampling
from model.decoding.sampling import apply_filters
from model.rope_scaling import RopeScaling
from model.text.hf_tokenizer import HFTokenizer, hugging_face_files
from model.text.tokenizer import SentencePieceTokenizer, Tokenizer
from model.text.train_tokenizer import train_tokenizer
from model.weights import load_model, save_model, save_tokenizer
from study import page as page_topic
from study.page.vocabulary import vocabulary
from study.topics import run

WEB = Path(page_topic.__file__).parent
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")

SCALINGS = {
    "none": None,
    "linear": RopeScaling("linear", 2.5),
    "ntk": RopeScaling("ntk", 3.0),
    "llama3": RopeScaling("llama3", 4.0, original_max_seq_len=9, low=1.0, high=3.0),
    "yarn": RopeScaling("yarn", 4.0, original_max_seq_len=10, low=0.5, high=2.0),
}


def run_in_node(script: str, data: object) -> object:
    """Run the body of a JavaScript function of ``data``, with the page's modules in scope, and return its result."""
    names = {"model": "M", "sampling": "S", "tokenizer": "T", "weights": "W", "strings": "U"}
    imports = "".join(f"import * as {short} from '{(WEB / name).as_uri()}.mjs';" for name, short in names.items())
    program = f"""{imports} import {{ readFileSync }} from 'node:fs';
        const answer = ((data) => {{ {script} }})(JSON.parse(readFileSync(0, 'utf8')));
        process.stdout.write(JSON.stringify(answer));"""
    command = [NODE, "--input-type=module", "-e", program]
    result = subprocess.run(
        command, input=json.dumps(data), capture_output=True, text=True, check=False, timeout=300, encoding="utf-8"
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def packed(model: Transformer, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    """The model as stored in the page. Rounds the weights of the model in the same way."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(dtype))
    facts, weights = page_topic.pack_network(model, dtype)
    return facts | {"weights": base64.b64encode(weights).decode()}


LOAD = "const model = new M.Transformer(m.args, W.readTensors(m, m.weights));"


@needs_node
def test_logits_equal_pythons_at_every_position_for_every_architecture(small_model):
    kinds = [{"rope_scaling": scaling} for scaling in SCALINGS.values()]
    kinds += [{"tie_embeddings": True}, {"n_kv_heads": 1}, {"n_kv_heads": 6, "rope_theta": 500.0}]
    kinds += [{"qkv_bias": True}, {"qk_norm": True}, {"qkv_bias": True, "qk_norm": True, "n_kv_heads": 1}]
    networks = [small_model(**kind).eval() for kind in kinds]
    for network in networks:
        for weight in network.parameters():
            if weight.ndim == 1:  # biases are 0 and norms 1 at first, which would hide a fault
                torch.nn.init.uniform_(weight, 0.5, 1.5)
    rounded = small_model(dim=30, hidden_dim=35, head_dim=6, n_heads=5, n_kv_heads=5, tie_embeddings=True).eval()
    models = [packed(network) for network in networks] + [packed(rounded, torch.float16)]
    tokens = torch.randint(0, 37, (24,)).tolist()
    answers = run_in_node(
        f"""return data.models.map((m) => {{ {LOAD}
            const cache = new M.KVCache(m.args), {{ tokens }} = data;
            return [[24], [1, 6, 17], Array(24).fill(1)].map((chunks) => {{
                let at = 0;
                return chunks.flatMap((T) => [...model.forward(tokens.slice(at, at += T), at - T, cache)]);
            }}).concat([[...model.forward(tokens)]]); }});""",
        {"models": models, "tokens": tokens},
    )
    for network, chunkings in zip([*networks, rounded], answers):
        with torch.no_grad():
            expected = network(torch.tensor([tokens]))[0]
        assert expected.std() > 0.3  # the logits must differ, or a fault would not show
        for logits in chunkings:
            assert torch.allclose(torch.tensor(logits).view(24, 37), expected, atol=1e-4, rtol=0)


TEXT = (
    "The rope is laid in the ropewalk, and the walk is as long as the rope. " * 20
    + "Ünïcode: 绳子 and\n\ttabs  here.\n"
)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, SentencePieceTokenizer]:
    home = tmp_path_factory.mktemp("tokenizers")
    return {
        kind: SentencePieceTokenizer(train_tokenizer([TEXT], home / f"{kind}.model", kind, 330))
        for kind in ("bpe", "char")
    }


# Words, spaces, control characters, and characters that tokenizers treat differently.
PARTS = [
    *TEXT.split(), "  ", "\n", "\t", "\r\n", " ", "\u2581", "é", "绳", "索", "🧵", "\u0000", "<s>", "<0x41>", "\ufeff",
    "\u0085", "\u3000", "\u2028", "e\u0301", "\u00bd", "12345", "</s>", "\U0001f468\u200d\U0001f467",
]  # fmt: skip


def random_texts(count: int) -> list[str]:
    draw = random.Random(7)

    def join(parts: list[str]) -> str:
        return "".join(draw.choice(["", " "]) + draw.choice(parts) for _ in range(draw.randint(1, 12)))

    characters = [chr(draw.choice([draw.randint(32, 0xD7FF), draw.randint(0x10000, 0x1FFFF)])) for _ in range(1000)]
    texts = [join(draw.choice([PARTS, characters])) for _ in range(count)]
    return ["", " ", "\u2581", "  rope", "rope  ", "a\u2581b", TEXT, *texts]


def train_sentencepiece(directory: Path, **options) -> SentencePieceTokenizer:
    settings = {"vocab_size": 320, "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    settings |= {"character_coverage": 0.99}
    return SentencePieceTokenizer(trained_by_sentencepiece(directory, TEXT, **settings | options))


@needs_node
def test_texts_are_encoded_and_ids_decoded_as_by_sentencepiece(tokenizers, tmp_path):
    """Tokenizers of train.py, and of published models, which add and collapse spaces."""
    llama = train_sentencepiece(tmp_path / "llama", remove_extra_whitespaces=False)
    stories = train_sentencepiece(tmp_path / "stories")  # SentencePiece's defaults, as in llama2.c's models
    plain = train_sentencepiece(tmp_path / "plain", add_dummy_prefix=False, byte_fallback=False)
    assert (llama.adds_space, stories.adds_space, plain.adds_space) == (True, True, False)
    kinds = [*tokenizers.values(), llama, stories, plain]
    texts = random_texts(500)
    draw = random.Random(5)
    cases = []
    for tokenizer in kinds:
        size = tokenizer.vocab_size
        rows = [[draw.randrange(size) for _ in range(draw.randint(0, 9))] for _ in range(250)]
        rows += [
            [draw.randrange(3, min(259, size)) for _ in range(6)] for _ in range(250)
        ]  # bytes, mostly invalid UTF-8
        rows += [tokenizer.encode(text) for text in texts]
        cases.append({"vocabulary": vocabulary(tokenizer, ""), "rows": rows})
    answers = run_in_node(
        """return data.tokenizers.map(({ vocabulary, rows }) => {
            const tokenizer = new T[vocabulary.type](vocabulary);
            return [data.texts.map((text) => tokenizer.encode(text)), rows.map((ids) => tokenizer.decode(ids))];
        });""",
        {"tokenizers": cases, "texts": texts},
    )
    for tokenizer, case, (encoded, decoded) in zip(kinds, cases, answers):
        for text, ids in zip(texts, encoded):
            assert ids == tokenizer.encode(text), (tokenizer.path, text)
        for row, text in zip(case["rows"], decoded):
            assert text == tokenizer.decode(row), (tokenizer.path, row)


def json_tokenizer(home: Path, content: dict, bos: str) -> HFTokenizer:
    home.mkdir(parents=True)
    (home / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (home / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos}), encoding="utf-8")
    return HFTokenizer(home / "tokenizer.json")


def test_another_tokenizer_is_stored_as_its_pieces_and_the_ids_of_the_prompt(tmp_path):
    """tokenizer.json, and SentencePiece models that tokenizer.mjs does not run."""
    pytest.importorskip("tokenizers")
    content, _ = hugging_face_files(train_sentencepiece(tmp_path / "llama"))
    others = {
        "unigram": {"model_type": "unigram", "vocab_size": 300},
        "normalized": {"normalization_rule_name": "nmt_nfkc"},
        "defined": {"user_defined_symbols": ["rope"]},
        "suffix": {"treat_whitespace_as_suffix": True},
    }
    made: list[Tokenizer] = [json_tokenizer(tmp_path / "json", content, "<s>")]
    made += [train_sentencepiece(tmp_path / name, **options) for name, options in others.items()]
    for tokenizer in made:
        facts = vocabulary(tokenizer, "the rope")
        assert facts["type"] == "FixedText", tokenizer.path
        assert facts["ids"] == tokenizer.encode("the rope")
        assert len(facts["pieces"]) == tokenizer.vocab_size
        assert "rope" in "".join(facts["pieces"][token] for token in facts["ids"])


@needs_node
def test_sampling_cuts_the_same_tokens_as_generate_and_draws_by_probability():
    logits = (torch.randn(3, 50) * 3).tolist()
    settings = [(0.7, 0, 1.0), (1.3, 5, 1.0), (0.9, 0, 0.6), (1.0, 20, 0.8)]
    kept, drawn, uniform = run_in_node(
        """const isKept = (row, [temperature, topK, topP]) =>
            S.filterLogits(row, { temperature, topK, topP }).kept.map((logit) => logit > -Infinity);
        const kept = data.settings.map((each) => data.logits.map((row) => isKept(row, each)));
        const sampling = { temperature: 1, topK: 3, topP: 1 }, counts = Array(50).fill(0);
        for (let n = 0; n < 20000; n++) counts[S.choose(data.logits[0], sampling, S.uniformOf(3, n))]++;
        return [kept, counts, Array.from({ length: 1000 }, (_, seed) => S.uniformOf(seed, 7))];""",
        {"logits": logits, "settings": settings},
    )
    for (temperature, top_k, top_p), rows in zip(settings, kept):
        expected = apply_filters(torch.tensor(logits), Sampling(temperature, top_k or None, top_p))
        assert rows == expected.isfinite().tolist()
    probs = apply_filters(torch.tensor(logits[:1]), Sampling(1.0, 3))[0].softmax(0)
    assert torch.allclose(torch.tensor(drawn) / 20000, probs, atol=0.02)
    assert min(uniform) >= 0
    assert max(uniform) < 1
    assert 0.45 < sum(uniform) / 1000 < 0.55


@pytest.fixture
def toy(small_model, tokenizers, tmp_path) -> Path:
    tokenizer = tokenizers["bpe"]
    save_tokenizer(tokenizer, tmp_path / "toy")
    save_model(small_model(vocab_size=tokenizer.vocab_size), tmp_path / "toy")
    return tmp_path / "toy"


@pytest.fixture
def page(toy, tmp_path) -> str:
    run("page", model=toy, out=tmp_path / "page.html", prompt="</script><b>")
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def script_element(page: str, name: str) -> str:
    return re.search(rf'<script type="[\w/]+" id="{name}">(.*?)</script>', page, re.DOTALL)[1]


@pytest.fixture
def facts(page) -> dict:
    return json.loads(script_element(page, "facts"))


def test_the_file_contains_the_model_and_loads_nothing_from_outside(toy, page, facts):
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in page
    assert facts["prompt"] == "</script><b>"
    assert (facts["name"], facts["dtype"]) == ("toy", "float32")
    state = load_model(toy).state_dict()
    assert [shape[0] for shape in facts["shapes"]] == list(state)
    weights = torch.frombuffer(bytearray(base64.b64decode(script_element(page, "weights"))), dtype=torch.float32)
    assert torch.equal(weights, torch.cat([weight.flatten() for weight in state.values()]))
    for tag in ("style", "script"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[0]
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in page
    assert "unsafe" not in re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]


def test_weights_are_stored_in_float16_unless_one_overflows(small_model):
    model = small_model()
    assert page_topic.pack_network(model, torch.float16)[0]["dtype"] == "float16"
    with torch.no_grad():
        model.norm.weight[0] = 1e5
    assert page_topic.pack_network(model, torch.float16)[0]["dtype"] == "float32"


def test_every_annotation_matches_one_line_of_attention_py(facts):
    source = (WEB / "score_view.mjs").read_text(encoding="utf-8")
    assert {"def forward(", "    B, T, _ = x.shape", "    return weights @ v"} <= {text for _, text in facts["lines"]}
    patterns = re.findall(r'\["line\w+", /(.*)/\],', source)
    assert len(patterns) == 8
    for pattern in patterns:
        assert len([text for _, text in facts["lines"] if re.search(pattern, text)]) == 1, pattern
    code = Path(attention.__file__).read_text(encoding="utf-8").splitlines()
    assert all(code[number - 1].strip() == text.strip() for number, text in facts["lines"])


@needs_node
def test_every_text_exists_in_both_languages_and_is_used():
    table = run_in_node("return U.STRINGS;", None)
    sources = [path.read_text(encoding="utf-8") for path in [*WEB.glob("*.mjs"), WEB / "page.html"]]
    used = set(re.findall(r'data-(?:t|label)="(\w+)"', sources[-1]))
    used |= {key for source in sources for key in re.findall(r'\bt\(\s*"(\w+)"', source)}
    assert used <= set(table)
    for key, (english, chinese) in table.items():
        assert sum(f'"{key}"' in source for source in sources), f"{key} is unused"
        assert sorted(set(re.findall(r"\{(\w+)\}", english))) == sorted(set(re.findall(r"\{(\w+)\}", chinese))), key
        assert english.strip()
        assert chinese.strip()


def test_a_page_that_cannot_be_written_is_refused(toy, tmp_path, monkeypatch):
    for out in (tmp_path / "nowhere" / "page.html", toy):
        with pytest.raises(ValueError, match="name a file in a directory that exists"):
            run("page", model=toy, out=out)
    monkeypatch.setattr(page_topic, "LARGEST_MODEL", 20_000)
    with pytest.raises(ValueError, match=r"parameters.*train a smaller model"):
        run("page", model=toy, out=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
