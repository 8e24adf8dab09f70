"""Models of the Hugging Face Hub: from a cache in the Hub's layout, and from a server that answers as the Hub does."""

import hashlib
import json
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from script_helpers import run_in_process, save_run

import convert
import evaluate
import generate
import train
from model.weights import load_model, load_tokenizer
from model.weights.hub import local_directory

constants = pytest.importorskip("huggingface_hub.constants")

TEXT = "the ropewalk is a long lane where rope is laid. " * 50
ID = "ropes/hemp"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A model's directory, and an empty working directory and cache."""
    model = save_run(tmp_path / "made", TEXT, scale=1, dim=32, n_layers=1, n_heads=2, vocab_size=290, max_seq_len=32)
    (tmp_path / "made" / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return model, tmp_path / "made"


@pytest.fixture
def cached(made, tmp_path):
    """The model in a cache as huggingface_hub lays it out, and no connection."""
    model, directory = made
    folder = tmp_path / "cache" / "models--ropes--hemp"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION, encoding="utf-8")
    (folder / "snapshots").mkdir()
    directory.rename(folder / "snapshots" / REVISION)
    return model, folder / "snapshots" / REVISION


class Hub(BaseHTTPRequestHandler):
    """The parts of the Hub's API that a download needs."""

    files: dict[str, bytes]
    asked: list[str]
    status = 200  # of the repository
    gated = False  # the files are refused, but not their names

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{ID}/revision/"):
            self.answer(json.dumps({"id": ID, "sha": REVISION, "siblings": []}).encode())
        elif path.startswith(f"/api/models/{ID}/tree/"):
            entries = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in self.files.items()]
            self.answer(json.dumps(entries).encode())
        elif path.startswith(f"/{ID}/resolve/{REVISION}/"):
            name = path.rpartition(f"{REVISION}/")[2]
            if self.command == "GET":
                self.asked.append(name)
            self.answer(self.files[name], "GatedRepo" if self.gated else "")
        else:
            self.answer(b"", "RepoNotFound")

    do_HEAD = do_GET

    def answer(self, content, error=""):
        self.send_response({"GatedRepo": 403, "RepoNotFound": 401}.get(error, self.status))
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(made, monkeypatch):
    """A server with the model, and beside it other files, which must not be downloaded."""
    files = {file.name: file.read_bytes() for file in made[1].iterdir()}
    files |= {"modeling_hemp.py": b"code", "pytorch_model.bin": b"pickle", "original/model.safetensors": b"other"}
    handler = type("Handler", (Hub,), {"files": files, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    yield handler
    server.shutdown()
    server.server_close()


def is_same(model, other):
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_an_id_opens_from_the_cache_without_a_connection(cached):
    model, snapshot = cached
    assert local_directory(ID) == snapshot
    assert is_same(model, load_model(ID))
    assert load_tokenizer(ID).path.parent == snapshot
    assert local_directory(snapshot) == snapshot


def test_programs_take_an_id(cached, capfd):
    model, _ = cached
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    for program, *flags in (
        (generate, ID, "--prompt", "the rope", "--max_new_tokens", 3),
        (generate, ID, "--chat", "--prompt", "the rope", "--max_new_tokens", 3),
        (evaluate, ID, "--data", "text.txt"),
        (convert, ID, "copy"),
    ):
        assert run_in_process(program.main, f"{program.__name__}.py", *flags) == 0, capfd.readouterr().err
    assert is_same(model, load_model("copy"))


def test_a_run_records_the_id_and_where_its_files_lay(cached, capfd):
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    flags = ("--data", "text.txt", "--init_from", ID, "--out_dir", "run", "--device", "cpu", "--batch_size", 2)
    assert run_in_process(train.main, "train.py", *flags, "--max_steps", 2) == 0, capfd.readouterr().err
    settings = tomllib.loads(Path("run/config.toml").read_text(encoding="utf-8"))
    assert (settings["init_from"], settings["tokenizer"]) == (ID, str(cached[1]))
    assert Path("run/tokenizer.model").read_bytes() == (cached[1] / "tokenizer.model").read_bytes()


def test_an_id_is_downloaded_once_and_only_what_is_read(hub, made):
    load_tokenizer(ID)
    assert "model.safetensors" not in hub.asked
    assert is_same(made[0], load_model(ID))
    wanted = {name for name in hub.files if not name.startswith(("modeling", "pytorch", "original"))}
    assert sorted(hub.asked) == sorted(wanted)
    assert {file.name for file in local_directory(ID).iterdir()} == wanted
    load_model(ID)
    assert len(hub.asked) == len(wanted), "the second time from the cache"


def test_shards_are_those_that_the_index_lists(hub, made):
    content = hub.files.pop("model.safetensors")
    hub.files |= {"one.safetensors": content, "model-00002-of-00002.safetensors": b"not listed"}
    weight_map = {"weight_map": {"model.norm.weight": "one.safetensors"}}
    hub.files["model.safetensors.index.json"] = json.dumps(weight_map).encode()
    assert is_same(made[0], load_model(ID))
    assert "one.safetensors" in hub.asked
    assert "model-00002-of-00002.safetensors" not in hub.asked


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("config.json", b'{"model_type": "gemma3"}', r"config\.json: model_type is 'gemma3': supported are"),
        ("config.json", None, f"{ID} has no config.json on the Hub: GGUF files and adapters are not read"),
        ("model.safetensors", None, f"{ID} has no model.safetensors on the Hub: run `hf download {ID} --local-dir "),
        ("gated", True, f"{ID} is gated: accept its terms on https://huggingface.co/{ID}, then run `hf auth login`"),
        ("status", 500, f"{ID} is not a path here, the Hub cannot be reached"),
    ],
)
def test_a_model_that_the_hub_does_not_give_is_one_line(hub, capfd, attribute, value, words):
    """A file that is another one or missing, or a server that refuses."""
    if attribute not in hub.files:
        setattr(hub, attribute, value)
    elif value is None:
        del hub.files[attribute]
    else:
        hub.files[attribute] = value
    with pytest.raises(ValueError, match=words):
        load_model(ID)
    assert run_in_process(generate.main, "generate.py", ID) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("generate.py: error: ")
    assert "model.safetensors" not in hub.asked


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ropes/sisal", "^ropes/sisal is neither a path here nor a model on the Hub"),
        ("ropes/a--b", "ropes/a--b cannot be downloaded from the Hub: "),
        ("ropes/a b", "^ropes.a b does not exist: give a run or a Hugging Face directory"),
        ("../hemp", "^...hemp does not exist: give a run"),
        ("/hemp/rope", "^.hemp.rope does not exist: give a run"),
        ("a/b/c", "^a/b/c does not exist: give a run or a Hugging Face directory"),
        ("hemp", "^hemp does not exist: give a run"),
        ("runs/mistyped", "^runs.mistyped does not exist: give a run"),
    ],
)
def test_a_name_that_is_no_model_is_one_line(name, words):
    with pytest.raises(ValueError, match=words):
        load_model(name)


@pytest.mark.usefixtures("hub")
def test_a_mistyped_path_below_a_folder_that_exists_does_not_leave_the_machine(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    words = "^models/lama does not exist: models is a folder here, so the Hub is not asked; .* otherwise give a run"
    for load in (load_model, load_tokenizer):
        with pytest.raises(ValueError, match=words if load is load_model else "models/lama is not a file"):
            load("models/lama")
    assert not hub.asked


@pytest.mark.usefixtures("made")
def test_without_a_connection_and_a_copy_the_error_says_so():
    with pytest.raises(ValueError, match=rf"{ID} is not a path here, .* connect, unset HF_HUB_OFFLINE, or give a dir"):
        load_model(ID)


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ValueError, match=rf"{ID} does not exist: .* `pip install huggingface_hub tokenizers`, then this"
    ):
        load_model(ID)
