# Every target does its own set-up. A new machine needs make and python3 (3.11 or newer) with pip.
SHELL := /bin/bash
PYTHON ?= python3
UV_VERSION := 0.13.7
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TYPES_LOG := $(VENV)/types.log
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv
# PyPI has no wheel of pyspark, so set-up builds one. It contains half a gigabyte of archives; compressing them again
# would only take time.
STORED := --config-settings-package pyspark:--build-option=--compression=stored
# Spark puts these archives of its own Python modules first on the path of its Python workers. Python cannot cache
# compiled modules in an archive, so each worker (a session has ten) would compile them again. Without the archives the
# workers import the installed package.
SHADOWS := site-packages/pyspark/python/lib/*.zip
# deploy/requirements.lock is for containers: what a node needs at run time and to build, in the versions of
# requirements.lock.
COMPILE := $(UV) pip compile --quiet --generate-hashes --no-emit-index-url --no-header
# Compiling takes half a minute of CPU time. More than half of it would be for the tests of packages and for mypy, whose
# modules are compiled to C already.
NEVER_IMPORTED := /(tests|mypy|mypyc|pip|pygments)/

# The test suite starts hundreds of node processes; without cached bytecode each would compile all its modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check style types bench prove lock clean

help:  ## list the targets
	@sed -n -E 's/^([a-z]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 10

setup: $(READY)  ## create .venv with everything in it

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

# mypy needs most of a minute of one CPU, so it runs beside the tests; its result is printed after theirs.
# Five workers keep two CPUs busy, because the long tests mostly wait.
test: style  ## run lint, type checks and the test suite
	@nice $(MAKE) --no-print-directory types >$(TYPES_LOG) 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
	$(BIN)/python -m pytest -n 5 --dist worksteal --durations=20; tests=$$?; \
	if wait $$types; then echo "types and import rules: no errors"; else cat $(TYPES_LOG); tests=1; fi; \
	exit $$tests

check: style types  ## run lint, format, type and import checks

style: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY)  ## run the benchmarks, side by side with peers
	@for program in bench/*.py; do $(BIN)/python $$program || exit 1; done

prove: $(READY)  ## run the long campaigns, resumable; results in docs/results
	@$(BIN)/python -m campaigns

lock: $(READY)  ## pin the dependencies again
	@$(COMPILE) --all-extras pyproject.toml -o requirements.lock
	@$(COMPILE) --extra postgres --constraint requirements.lock pyproject.toml deploy/build.in -o deploy/requirements.lock

clean:  ## remove the files that set-up and tests created
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-out build dist
