# The commands of the project: `make serve` is the one to begin with.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8080
MODEL ?= smollm2-135m
ARGS ?=
NATIVE_SOURCES := $(shell find native CMakeLists.txt pyproject.toml -type f 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help env env-test serve test test-long check check-portable format golden clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/.installed: $(NATIVE_SOURCES)
	@tools/check_system.sh $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) and building: a minute or two, now and when native/ has changed"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: $(NATIVE_SOURCES)
	@tools/check_system.sh $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) and building: a minute or two, now and when native/ has changed"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,dev]'
	@touch $(VENV)/.installed $@

env: $(VENV)/.installed  ## make .venv with gristmill in it

env-test: $(VENV)/.installed-test  ## .venv with what the tests need, the models fetched
	@$(BIN)/gristmill pull smollm2-135m
	@$(BIN)/gristmill pull gemma3-270m

serve: env  ## serve the default model: make serve PORT=9000 ARGS="--max-num-seqs 32"
	@exec $(BIN)/gristmill serve $(MODEL) --port $(PORT) $(ARGS)

test: env-test  ## the whole test suite
	$(BIN)/python -m pytest tests

test-long: env-test  ## the full-length versions; writes docs/proof.md
	$(BIN)/python tools/prove.py

check: env-test  ## format, lint, strict types, laws
	$(BIN)/ruff format --check src tests tools benchmarks
	$(BIN)/ruff check src tests tools benchmarks
	$(BIN)/clang-format --dry-run --Werror $$(find native -name '*.cpp' -o -name '*.h')
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/laws

check-portable:  ## the native kernel tests under qemu-user: old x86-64, AVX2, arm64
	tools/check_portable.sh

format: env-test  ## rewrite the sources in the project's format
	$(BIN)/ruff format src tests tools benchmarks
	$(BIN)/ruff check --fix src tests tools benchmarks
	$(BIN)/clang-format -i $$(find native -name '*.cpp' -o -name '*.h')

golden:  ## make the committed goldens again (torch and transformers, in an environment of their own)
	@test -x .venv-golden/bin/python || $(PYTHON) -m venv .venv-golden
	.venv-golden/bin/pip install --quiet torch==2.13.0 transformers==5.24.0 safetensors numpy gguf
	.venv-golden/bin/python tools/make_goldens.py

clean:  ## remove what was built
	rm -rf build dist $(VENV)
