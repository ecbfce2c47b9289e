# Every target makes the virtual environment .venv first, if it is not there. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python from 3.11 on; `make PYTHON=/path/to/python3.12 demo` picks another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
WORKERS ?= 2
PROGRAMS ?= 20000
SEED ?= 1
say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help setup demo test test-all test-distributed break-one conformance fuzz lint types clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort \
		| awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv with everything the demo and the tests need

$(READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python 3.11 or newer found; install one, or: make PYTHON=/path/to/python3"; exit 1; fi
	@if [ ! -x $(RUN) ]; then echo "==> making $(VENV) with $$($(PYTHON) --version)"; \
		$(PYTHON) -m venv $(VENV); fi
	$(call say,installing torch-tpu-unified and the tested versions of what it needs (a few minutes))
	@$(RUN) -m pip install --disable-pip-version-check --progress-bar on \
		--constraint constraints.txt --editable '.[dev]' \
		| sed -u -n -e '/^Collecting/s/^/    /p' -e '/^Downloading/s/^/    /p' -e '/^Successfully installed/s/^.*$$/    installed/p'; \
		exit $${PIPESTATUS[0]}
	@touch $@

demo: $(READY) ## train on tpu, convert, run the LiteRT file, compare all four (about 5 minutes)
	$(call say,running examples/demo.py)
	@$(RUN) examples/demo.py

lint: $(READY) ## ruff: format and rules
	$(call say,ruff)
	@$(RUN) -m ruff format --check --quiet . || { $(RUN) -m ruff format --diff --quiet . | head -40; \
		echo "error: not formatted; run $(VENV)/bin/ruff format"; exit 1; }
	@$(RUN) -m ruff check .

types: $(READY) ## mypy --strict on the face, core, the CLI and the exporter's spine
	$(call say,mypy)
	@$(RUN) -m mypy

test: lint types ## lint, types and the tests, in random order on 2 processes
	$(call say,pytest on $(WORKERS) processes)
	@$(RUN) -m pytest -n $(WORKERS) --dist worksteal
	$(call say,lint and types and tests passed)

test-all: lint types ## as test, with every sample of every operator and the slow tests
	$(call say,pytest --full on $(WORKERS) processes)
	@$(RUN) -m pytest -n $(WORKERS) --dist worksteal --full

test-distributed: $(READY) ## collectives and strategies on 2 and 4 processes, all of them
	@$(RUN) -m pytest -m distributed -p no:randomly tests/distributed

break-one: $(READY) ## damage some lowerings, one at a time, and see that a test fails each time
	@$(RUN) -m tests.breaking

conformance: $(READY) ## PyTorch's operator database in five more dtypes and with out=
	@$(RUN) -m pytest -q -n $(WORKERS) --full tests/cloud/test_conformance.py

fuzz: $(READY) ## random programs of views and writes against the CPU (PROGRAMS=20000 SEED=1)
	@$(RUN) -m tests.fuzz --programs $(PROGRAMS) --seed $(SEED)

clean: ## remove .venv, caches and what the demo left
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache
