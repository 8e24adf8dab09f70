# make demo: set up, train the demo, generate from it.   make test: set up, run the tests, except the slow ones.
# make site: the walk as web pages.                      make test-all: the slow ones, too.
# All work in a fresh clone with Python 3.11 or newer. Without make, see README.md.

PYTHON ?= $(if $(filter Windows_NT,$(OS)),python,python3)
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# A worker for each core, because a test takes one thread; more than 8 would spend their time on importing PyTorch.
# Each file of tests goes to one worker (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadgroup

.PHONY: demo site test test-all fuzz test-page lint clean

# With FLAGS="--max_steps 20" it takes seconds
demo: .venv/run
	$(BIN)/python train.py configs/demo.toml $(FLAGS)
	@echo
	$(BIN)/python generate.py --prompt "Open a file" --num_samples 2 --temperature 0.65 --top_p 0.95 --max_new_tokens 60
	@echo
	$(BIN)/python -m study page --prompt "Open a file" --out runs/page.html

# The walk as web pages with live figures: site/index.html. Needs the model of `make demo`. For a site that is published:
# make site ADDRESS=https://me.github.io/ropewalk REPOSITORY=https://github.com/me/ropewalk
site: .venv/run
	$(PIP) markdown-it-py==4.3.0
	$(BIN)/python -m study article runs/demo --out site --prompt "Open a file" --address "$(ADDRESS)" --repository "$(REPOSITORY)"

test: .venv/test
	$(PYTEST) -m "not slow"

# Also real compilers, a browser, installation, several processes, kills, pictures, and many damaged files
test-all: .venv/test
	$(PYTEST)

# Property tests with new random inputs each time, for hours; stop with Ctrl-C
fuzz: .venv/test
	$(BIN)/python -m pytest tests/model/test_properties.py tests/programs/test_properties_files.py --hypothesis-profile=fuzz --timeout=0

# Tests of the page in node and in a browser: apt-get install nodejs chromium
test-page: .venv/test
	$(BIN)/python -m pytest tests/study/test_page.py tests/study/test_page_browser.py tests/study/test_article.py -rs

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Ropewalk needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv .venv

.venv/run: requirements.txt | .venv/pyvenv.cfg
	$(PIP) -r requirements.txt
	@touch $@

.venv/test: requirements-dev.txt .venv/run
	$(PIP) -r requirements-dev.txt
	@touch $@

# Keeps runs/, because trained models take hours to replace
clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache build *.egg-info
	@if [ -d runs ]; then echo "kept runs/ with your trained models; to remove them: rm -r runs"; fi
