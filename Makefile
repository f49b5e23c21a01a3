# Each target works from a fresh clone: the virtual environment is made when it is missing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BASE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PEERS := $(VENV)-peers
# Material's notice about MkDocs 2 is not ours to act on. No --quiet: it hides warnings from --strict too.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: demo test gpu check docs soak bench clean

# torch first and from its exact pin: a looser request may fetch gigabytes of CUDA libraries.
$(BASE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(INSTALL) -c constraints.txt -e .
	touch $@

$(DEV): $(BASE)
	$(INSTALL) -c constraints.txt -e '.[test,dev,docs]'
	touch $@

demo: $(BASE) ## prepare real text from your own Python environment, then train a small GPT on it
	$(BIN)/prep run quickstart --out runs/quickstart
	$(BIN)/prep tokenizer train runs/quickstart --vocab-size 4096 --out runs/tokenizer
	$(BIN)/prep run quickstart --out runs/quickstart --set tokenize.tokenizer=runs/tokenizer
	$(BIN)/prep verify runs/quickstart
	$(BIN)/train CSX --params demo --data runs/quickstart --num_csx 2 --model_dir runs/demo --mode train_and_eval
	$(BIN)/prep trace runs/quickstart --train runs/demo --step 57 | head -20
	$(BIN)/train convert runs/demo --src-fmt wafermill --tgt-fmt hf --out runs/demo/export
	$(BIN)/train generate --model_dir runs/demo --prompt "def" --max-new-tokens 60 --temperature 0.8

# The tests start hundreds of processes; where Python may not write byte code (PYTHONDONTWRITEBYTECODE,
# usual in containers), each would compile all that it imports, and each of those that run tests, on
# a new machine, all kernels.
test: $(DEV) ## the whole test suite but soak tests, on every core; one test more, as some wait
	$(BIN)/python -m compileall -q pipeline dedup trainer wafer_backend
	$(BIN)/python -m tests.compile_kernels
	$(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist worksteal

gpu: $(DEV) ## the tests that need a GPU, which `make test` skips
	WAFERMILL_TEST_CUDA=1 $(BIN)/python -m pytest -n 4 tests/wafer_backend/streaming/test_on_cuda.py tests/trainer/loop/test_on_cuda.py

check: $(DEV) ## lint, format, types, import rules, links of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MKDOCS)

docs: $(DEV) ## the documentation as a site: site/index.html
	$(MKDOCS)

soak: $(DEV) ## the slow tests: full crash sweep, random kills, the whole pile sample
	$(BIN)/python -m pytest -m slow --timeout=7200

$(PEERS)/.installed: benchmarks/text_to_hdf5/requirements.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

bench: $(DEV) $(PEERS)/.installed ## ours and its peers by turns, ten minutes: the tables of docs/benchmarks.md
	$(BIN)/python -m benchmarks.standing --peer-python $(PEERS)/bin/python --json docs/benchmarks.json --page docs/benchmarks.md

clean:
	rm -rf $(VENV) $(PEERS) runs site build dist *.egg-info
