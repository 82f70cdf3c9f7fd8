# Every target makes .venv itself; nothing has to be done before.
PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
# A test process per core, and tests of one file mostly in one process; PYTEST_ARGS="-n 0" for one process alone.
PYTEST_CORES := -n logical --maxprocesses 8 --dist worksteal
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all check format docs notebooks dist stranger bench peers clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make .venv, or bring it up to date
	@:

# Made anew only when what it is made from has changed; the pins keep pip from looking for anything newer.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-input --disable-pip-version-check \
		-c constraints.txt -e '.[lab,test,dev]' </dev/null
	@touch $@

demo: $(STAMP) ## run the main job on embedded data
	$(BIN)/python -m fcco demo

test: $(STAMP) ## run the tests and the doctests, without the slow ones
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_CORES) $(PYTEST_ARGS)

test-all: $(STAMP) ## run every test, the slow ones too
	$(BIN)/python -m pytest $(PYTEST_CORES) $(PYTEST_ARGS)

check: $(STAMP) ## ruff (lint and format) and mypy --strict over src
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site's generator comes with the first `make docs`, so that the other targets need not wait for it.
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install -q --no-input --disable-pip-version-check -c constraints.txt -e '.[docs]' </dev/null
	@touch $@

docs: $(DOCS_STAMP) ## build the documentation site in build/docs; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/docs

notebooks: $(DOCS_STAMP) ## run the notebooks again, and keep what they print and draw
	$(BIN)/python docs/notebooks/run.py

# The tools of a release live in an environment of their own: nothing else needs them.
dist: ## build the wheel and the sdist in dist/, and check both
	rm -rf dist build/release
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install -q --no-input --disable-pip-version-check build==1.6.1 twine==7.0.0 </dev/null
	build/release/bin/python -m build --outdir dist
	build/release/bin/python -m twine check --strict dist/*

stranger: dist ## the wheel in an empty environment: first snippet, first notebook, first table
	$(PYTHON) tests/package/stranger.py

bench: $(STAMP) ## measure step times, with verdicts (BENCH_ARGS="--only tiny --out bench.json")
	$(BIN)/python -m fcco bench $(BENCH_ARGS)

peers: $(STAMP) ## measure against LibAUC (installed without its dependencies)
	$(BIN)/python -m pip install -q --no-input --disable-pip-version-check --no-deps libauc==2.0.1 </dev/null
	$(BIN)/python benchmarks/peers.py

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
