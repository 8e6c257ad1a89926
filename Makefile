# Requires make and Python 3.11 or newer. All dependencies are installed in .venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Tests and benchmarks start hundreds of processes. Without cached bytecode, a process takes twice as
# long to start.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo check test docs dist soak busy bench notebooks fmt lint types layers unit clean man

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.runtime ## Create a table on local disk, replay its log and write Parquet, showing each step
	$(BIN)/lakelog demo

# Two jobs: mypy runs on one core while the tests start on the other.
test: ## Check everything: lint, format, types, layers, tests, docs, notebooks
	@$(MAKE) --no-print-directory --jobs=2 lint types layers unit

# The rooms with uncommitted changes, without the slow ones; else a fixed set. Of the store tests,
# those that need no server.
CHANGED = $(shell git diff --name-only HEAD -- engine tests | sed -nE 's,^(engine/lakelog|tests)/([a-z]+)/.*,tests/\2,p' | sort -u)
SLOW := tests/spark tests/faults tests/races tests/perf tests/kernel tests/conformance
STORAGE := $(patsubst %,tests/storage/test_%.py,durable hadoop_checksums injecting_store passed_store \
	ranged regular_files scratch stores writes)
QUICK = $(patsubst tests/storage,$(STORAGE),$(filter-out $(SLOW),$(CHANGED:tests/testing=tests/storage)))
CHECKED ?= $(or $(wildcard $(QUICK)),tests/model tests/data)

check: lint types layers ## Check quickly, while you work: lint, types, layers, tests of the rooms that changed
	$(BIN)/python -m pytest -n auto -q $(CHECKED)

lint: $(VENV)/.dev ## Lint and check the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## Check the types (mypy --strict)
	$(BIN)/mypy

layers: $(VENV)/.dev ## Check that imports follow the layers
	$(BIN)/lint-imports

docs: export NO_MKDOCS_2_WARNING := true
docs: $(VENV)/.dev ## Build the documentation site into site/
	$(BIN)/python -m mkdocs build --quiet --strict

man: $(VENV)/.dev ## Build the manual pages of all commands into build/man
	mkdir -p build/man
	$(BIN)/python -c 'from click_man.core import write_man_pages; from lakelog.cli.app import app; \
	from lakelog import __version__ as version; write_man_pages("lakelog", app, version=version, target_dir="build/man")'

# The wheel is built from the sdist, so the sdist is complete.
dist: $(VENV)/.dev ## Build wheel and sdist into dist/, check both, and try the wheel with every Python here
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest -q -n auto tests/test_packaging.py
	$(BIN)/python -m tests.bare_environments

unit: $(VENV)/.dev ## Run the tests only
	$(BIN)/python -m pytest -n auto

# All cases of the sampled tests, and large budgets of the random ones. A failure prints the seed that
# repeats it: make soak LAKELOG_SEED=...
soak: export LAKELOG_SESSIONS ?= 300
soak: export LAKELOG_MUTATIONS ?= 5000
soak: export LAKELOG_EXAMPLES ?= 300
soak: export LAKELOG_ROUNDS ?= 20
soak: export LAKELOG_SAMPLE ?= all
soak: $(VENV)/.dev ## Run every test case, the random ones with large budgets, which takes hours
	$(BIN)/python -m pytest -n auto --timeout 7200

RUNS ?= 10
busy: $(VENV)/.dev ## Run the tests RUNS times in a row (10) next to two busy loops, up to a failure
	@trap 'kill $$(jobs -p)' EXIT; \
	for loop in 1 2; do $(BIN)/python -c 'while True: pass' & done; \
	for run in $$(seq $(RUNS)); do \
		echo "run $$run of $(RUNS)"; $(BIN)/python -m pytest -n auto -q || exit; \
	done

bench: $(VENV)/.dev ## Run the benchmarks and compare with deltalake and the raw decode
	$(BIN)/python -m perf

notebooks: $(VENV)/.dev ## Execute the notebooks and store their outputs
	$(BIN)/python -m tests.notebook_outputs

fmt: $(VENV)/.dev ## Format, and fix what the linter can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## Delete the environment, caches and build products
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find engine tests perf notebooks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Stamp files: an environment is rebuilt only if pyproject.toml changes. The package is installed in
# editable mode, so a change of its code needs no new installation.
$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "lakelog needs Python 3.11 or newer, with the venv module" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: pyproject.toml | $(VENV)/.python
	$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.runtime
