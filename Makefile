# Every target does all of its own set-up. A fresh machine needs python3 (3.11 or newer) with pip, and make.
SHELL := /bin/bash
PYTHON ?= python3
UV_VERSION := 0.13.7
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TYPES_LOG := $(VENV)/types.log
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv
# pyspark has no wheel on PyPI, so one is built of it here: half a gigabyte of archives that nobody need compress again.
STORED := --config-settings-package pyspark:--build-option=--compression=stored
# The same modules as the package's, which Spark puts before it on the path of its Python processes: each of them, and a
# session has ten, would compile what it imports anew, for archives cannot keep what was compiled.
SHADOWS := site-packages/pyspark/python/lib/*.zip
# The second lock is for containers: what a node needs, and what it is built with, in the versions of the first.
COMPILE := $(UV) pip compile --quiet --generate-hashes --no-emit-index-url --no-header
# Compiling takes half a minute of a processor's time, a good half of it for tests of packages and for mypy, which is no
# Python any more.
NEVER_IMPORTED := /(tests|mypy|mypyc|pip|pygments)/

# Nodes are processes, started by the hundred in the suite: each would compile all of its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check style types bench prove lock clean

help:  ## list the targets
	@sed -n -E 's/^([a-z]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 10

setup: $(READY)  ## make .venv with everything in it

$(READY): pyproject.toml requirements.lock
	@echo "set-up: filling $(VENV), about 700 MB to download the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(UV) pip install --quiet $(STORED) --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/lib/python*/$(SHADOWS)
	@$(BIN)/python -m compileall -q -j 0 -x '$(NEVER_IMPORTED)' src $(VENV)/lib
	@touch $(READY)
	@echo "set-up: done, $(BIN)/chaplain is ready"

demo: $(READY)  ## show what chaplain does, end to end
	@$(BIN)/chaplain demo

# Types take most of a minute of one processor alone: they are looked at while tests run, and told after them.
# Five workers keep two processors busy, because the long tests mostly wait.
test: style  ## lint, types and the test suite
	@nice $(MAKE) --no-print-directory types >$(TYPES_LOG) 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
	$(BIN)/python -m pytest -n 5 --dist worksteal --durations=20; tests=$$?; \
	if wait $$types; then echo "types and import rules: all well"; else cat $(TYPES_LOG); tests=1; fi; \
	exit $$tests

check: style types  ## lint, formatting, types and import rules

style: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY)  ## the benchmarks, beside their peers
	@for program in bench/*.py; do $(BIN)/python $$program || exit 1; done

prove: $(READY)  ## the long campaigns, resumable; results in docs/results
	@$(BIN)/python -m campaigns

lock: $(READY)  ## pin the dependencies anew
	@$(COMPILE) --all-extras pyproject.toml -o requirements.lock
	@$(COMPILE) --extra postgres --constraint requirements.lock pyproject.toml deploy/build.in -o deploy/requirements.lock

clean:  ## remove what set-up and tests made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-out build dist
