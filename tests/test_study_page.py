"""The page's arithmetic in node, held to Python's: logits, greedy tokens, tokenizers; and what the file may hold."""

import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from model import KVCache, ModelArgs, Transformer, generate
from model.rope import precompute_freqs_cis
from model.rope_scaling import RopeScaling
from model.study import TOPICS, run
from model.study import page as page_topic
from model.study.page.facts import architecture, vocabulary
from model.text.tokenizer import SentencePieceTokenizer, train_tokenizer

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


def node(script: str, given: object) -> object:
    """What the script, the body of a function of ``given``, returns; the page's modules are in scope."""
    names = {"model": "M", "sampling": "S", "tokenizer": "T", "worker": "W", "strings": "U"}
    imports = "".join(f"import * as {short} from '{(WEB / name).as_uri()}.mjs';" for name, short in names.items())
    program = f"""{imports} import {{ readFileSync }} from 'node:fs';
        const answer = ((given) => {{ {script} }})(JSON.parse(readFileSync(0, 'utf8')));
        process.stdout.write(JSON.stringify(answer));"""
    words = [NODE, "--input-type=module", "-e", program]
    done = subprocess.run(words, input=json.dumps(given), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def packed(model: Transformer, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    """The model as the page holds it, and the same rounding in the model itself."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(dtype))
    return page_topic.network(model, dtype)


LOAD = "const model = new M.Transformer(m.args, M.unpack(W.decodeBase64(m.weights), m.shapes, m.dtype));"


@needs_node
def test_logits_are_pythons_at_every_position_for_every_kind_of_network(small_model):
    kinds = [{"rope_scaling": scaling} for scaling in SCALINGS.values()]
    kinds += [{"tie_embeddings": True}, {"n_kv_heads": 1}, {"n_kv_heads": 6, "rope_theta": 500.0}]
    networks = [small_model(**kind).eval() for kind in kinds]
    rounded = small_model(dim=30, hidden_dim=35, head_dim=6, n_heads=5, n_kv_heads=5, tie_embeddings=True).eval()
    given = [packed(network) for network in networks] + [packed(rounded, torch.float16)]
    tokens = torch.randint(0, 37, (24,)).tolist()
    answers = node(
        f"""return given.models.map((m) => {{ {LOAD}
            const cache = new M.KVCache(m.args), {{ tokens }} = given;
            return [[24], [1, 6, 17], Array(24).fill(1)].map((chunks) => {{
                let at = 0;
                return chunks.flatMap((T) => [...model.forward(tokens.slice(at, at += T), at - T, cache)]);
            }}).concat([[...model.forward(tokens)]]); }});""",
        {"models": given, "tokens": tokens},
    )
    for network, ways in zip([*networks, rounded], answers):
        with torch.no_grad():
            expected = network(torch.tensor([tokens]))[0]
        assert expected.std() > 0.3  # logits that differ, so that a fault would show
        for way in ways:
            assert torch.allclose(torch.tensor(way).view(24, 37), expected, atol=1e-4, rtol=0)


@needs_node
def test_the_table_of_rotations_is_pythons_for_every_scaling():
    args = [ModelArgs(dim=24, n_heads=1, max_seq_len=2048, rope_theta=700.0, rope_scaling=s) for s in SCALINGS.values()]
    tables = node(
        "return given.map((a) => [...M.precomputeFreqsCis(24, 2048, a.ropeTheta, a.ropeScaling)]);",
        [architecture(each) for each in args],
    )
    for each, table in zip(args, tables):
        expected = torch.view_as_real(precompute_freqs_cis(24, 2048, 700.0, each.rope_scaling))
        assert torch.allclose(torch.tensor(table).view(2048, 12, 2), expected, atol=1e-6, rtol=0)


TEXT = "The rope is laid in the ropewalk, and the walk is as long as the rope. " * 20 + "Ünïcode: 绳子 and\n\ttabs  here.\n"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, SentencePieceTokenizer]:
    home = tmp_path_factory.mktemp("tokenizers")
    return {
        kind: SentencePieceTokenizer(train_tokenizer([TEXT], home / f"{kind}.model", kind, 330))
        for kind in ("bpe", "char")
    }


def strings(count: int) -> list[str]:
    """Words, spaces, foreign signs and broken habits, at random."""
    draw = random.Random(7)
    parts = [*TEXT.split(), "  ", "\n", "\t", "\r\n", " ", "\u2581", "é", "绳", "索", "🧵", "\u0000", "<s>", "<0x41>", "\ufeff"]
    made = ["", " ", "\u2581", "  rope", "rope  ", "a\u2581b", "</script>", *TEXT.split("."), TEXT]
    made += ["".join(draw.choice(["", " "]) + draw.choice(parts) for _ in range(draw.randint(1, 12))) for _ in range(count)]
    made += ["".join(chr(draw.choice([draw.randint(32, 126), draw.randint(160, 0xD7FF), draw.randint(0x10000, 0x1FFFF)]))
                     for _ in range(draw.randint(1, 9))) for _ in range(count // 4)]  # fmt: skip
    return made[:count]


@needs_node
@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_thousand_strings_are_encoded_and_decoded_as_sentencepiece_does(tokenizers, kind):
    tokenizer, texts = tokenizers[kind], strings(1000)
    draw = random.Random(5)
    rows = [[draw.randrange(tokenizer.vocab_size) for _ in range(draw.randint(0, 9))] for _ in range(500)]
    rows += [[draw.randrange(3, 259) for _ in range(6)] for _ in range(500)]  # bytes that are seldom a character
    rows += [[3 + byte for byte in text.encode()] for text in texts[:200]]
    answer = node(
        """const tokenizer = new T.Tokenizer(given.vocabulary);
        return [given.texts.map((text) => tokenizer.encode(text)), given.rows.map((ids) => tokenizer.decode(ids))];""",
        {"vocabulary": vocabulary(tokenizer), "texts": texts, "rows": rows},
    )
    assert answer[0] == [tokenizer.encode(text) for text in texts]
    assert answer[1] == [tokenizer.decode(ids) for ids in rows]
