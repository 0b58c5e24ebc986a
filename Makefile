# Every target does all of its own set-up. A fresh machine needs python3 (3.11 or newer) with pip, and make.
SHELL := /bin/bash
PYTHON ?= python3
UV_VERSION := 0.13.7
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv

# Nodes are processes, started by the hundred in the suite: each would compile all of its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check bench prove lock clean

help:  ## list the targets
	@sed -n -E 's/^([a-z]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 10

setup: $(READY)  ## make .venv with everything in it

$(READY): pyproject.toml requirements.lock
	@echo "set-up: filling $(VENV), about 700 MB to download the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(UV) pip install --quiet --compile-bytecode --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $(READY)
	@echo "set-up: done, $(BIN)/chaplain is ready"

demo: $(READY)  ## show what chaplain does, end to end
	@$(BIN)/chaplain demo

test: check  ## lint, types and the test suite
	@$(BIN)/python -m pytest -n 3 --dist worksteal --durations=20

check: $(READY)  ## lint, formatting, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY)  ## the benchmarks, beside their peers
	@for program in bench/*.py; do $(BIN)/python $$program || exit 1; done

prove: $(READY)  ## the long campaigns, resumable; results in docs/results
	@$(BIN)/python -m tests.prove

lock: $(READY)  ## pin the dependencies anew
	@$(UV) pip compile --quiet --generate-hashes --no-emit-index-url --no-header --all-extras pyproject.toml -o requirements.lock

clean:  ## remove what set-up and tests made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-out build dist
