# Each target makes its own virtual environment when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SGLANG_KIT ?= $(HOME)/.cache/parrot/sglang-cpu

.PHONY: help demo test check bench soak test-sglang test-vllm bench-gpu clean
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

$(VENV)/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Parrot needs Python 3.11 or newer; set PYTHON=python3.12, say")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[embedded,dev]'
	@touch $@

demo: $(VENV)/ready ## set up, then sixteen real texts summarised and combined on the embedded engine
	$(BIN)/parrot demo map-reduce

test: $(VENV)/ready ## the tests: core, engines, server, SDK, and the real model end to end
	$(BIN)/python -m pytest -m 'not sglang and not soak'

check: $(VENV)/ready ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ready ## the ratios of this machine, each measured side by side in one run
	$(BIN)/python -m benchmarks

soak: $(VENV)/ready ## the long counts
	$(BIN)/python -m pytest -m soak --timeout 3600

test-sglang: $(VENV)/ready ## two real SGLang replicas on this CPU (first run: about 2 minutes and 3 GB)
	tests/sglang_kit/sglang-cpu setup $(SGLANG_KIT)
	PARROT_SGLANG_KIT=$(SGLANG_KIT) $(BIN)/python -m pytest -m sglang --timeout 600

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
