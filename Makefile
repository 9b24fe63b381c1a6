.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PACKAGES := dalton envs agents baselines pipeline experiments conf

.PHONY: help run test lint typecheck bench figure clean FORCE

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.for-run ## Compare ten partitioners on a drifting stream
	$(BIN)/dalton run experiment=quickstart

# The `pytest` script, unlike `python -m pytest`, does not put the working directory on sys.path.
test: $(VENV)/.for-dev ## Run the tests
	$(BIN)/pytest -n 2 --dist loadgroup

lint: $(VENV)/.for-dev ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.for-dev ## Check types
	$(BIN)/mypy

bench: $(VENV)/.for-dev ## Measure throughput
	$(BIN)/dalton bench

figure: $(VENV)/.for-dev ## Make the README's figure again
	$(BIN)/dalton run experiment=quickstart tracking=none hydra.run.dir=outputs/figure
	cp outputs/figure/figures/*-time.png notebooks/quickstart.png

clean: ## Remove the environment, builds and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A strict editable install links the files that existed when it was made, into build/. The list of file names
# is therefore kept, and a file that came or went makes the links again. build/ is removed with every install,
# so nothing deleted survives in it.
EDITABLE := --no-build-isolation --config-settings editable_mode=strict -e

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.files: FORCE | $(VENV)/.python
	@find $(PACKAGES) \( -name '*.py' -o -name '*.yaml' -o -name '*.jinja' -o -name py.typed \) | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

INSTALL := $(BIN)/pip install -q --disable-pip-version-check

# `make run` needs neither Ray nor Spark nor torch, and does not wait for them; the tests need everything.
$(VENV)/.deps-run: EXTRA = tracking
$(VENV)/.deps-dev: EXTRA = dev
$(VENV)/.deps-run $(VENV)/.deps-dev: pyproject.toml constraints.txt | $(VENV)/.python
	rm -rf build
	$(INSTALL) -c constraints.txt setuptools
	$(INSTALL) -c constraints.txt $(EDITABLE) ".[$(EXTRA)]"
	@touch $@

$(VENV)/.for-run $(VENV)/.for-dev: $(VENV)/.for-%: $(VENV)/.deps-% $(VENV)/.files
	rm -rf build
	$(INSTALL) --no-deps $(EDITABLE) .
	@touch $@
