# Each target works from a fresh clone: the virtual environment is made when it is missing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check soak clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	touch $@

demo: $(STAMP) ## prepare real text from your own Python environment, then train a small GPT on it
	$(BIN)/prep run quickstart --out runs/quickstart
	$(BIN)/prep verify runs/quickstart
	$(BIN)/train CSX --params tiny --data runs/quickstart --num_csx 2 --num_steps 200 --model_dir runs/tiny --mode train
	$(BIN)/prep trace runs/quickstart --train runs/tiny --step 57 | head -20

test: $(STAMP) ## the whole test suite but soak tests
	$(BIN)/python -m pytest

check: $(STAMP) ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(STAMP) ## the slow tests: full crash sweep, random kills, the whole pile sample
	$(BIN)/python -m pytest -m slow --timeout=7200

clean:
	rm -rf $(VENV) runs build dist *.egg-info
