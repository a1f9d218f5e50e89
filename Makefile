# Needs make and Python 3.11 or newer, no more. Each target makes its own virtual environment when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SGLANG_KIT ?= $(HOME)/.cache/parrot/sglang-cpu
SGLANG ?= Qwen/Qwen2.5-7B-Instruct
VLLM_KIT ?= $(HOME)/.cache/parrot/vllm-cpu

.PHONY: help demo test check bench bench-gpu soak test-sglang test-vllm clean
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

# What the demo needs; `ready` has the tools for tests and checks as well.
$(VENV)/demo: EXTRAS := embedded
$(VENV)/ready: EXTRAS := embedded,dev
$(VENV)/demo $(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Parrot needs Python 3.11 or newer: make PYTHON=python3.12, say")'
	@echo "setting up $(VENV) with $(EXTRAS) (once)"
	@began=$$(date +%s) && $(PYTHON) -m venv $(VENV) \
	  && $(BIN)/pip install -qq --disable-pip-version-check -e '.[$(EXTRAS)]' \
	  && echo "set-up $$(($$(date +%s) - began)) s" && touch $(VENV)/demo $@

demo: $(VENV)/demo ## set up, then sixteen real texts explained and combined on the embedded engine
	@$(BIN)/parrot demo map-reduce

test: $(VENV)/ready ## the tests: core, engines, server, SDK, and the real model end to end
	$(BIN)/python -m pytest -m 'not sglang and not vllm and not soak'

check: $(VENV)/ready ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ready ## the ratios of this machine, each measured side by side in one run
	$(BIN)/python -m benchmarks

bench-gpu: $(VENV)/ready ## for a GPU: the demos and a flood on SGLang; SGLANG=model starts one, SGLANG=url uses one
	@case $(SGLANG) in http*) ;; *) $(BIN)/pip install -qq --disable-pip-version-check -e '.[sglang]' ;; esac
	$(BIN)/python -m benchmarks.gpu $(SGLANG)

soak: $(VENV)/ready ## the long counts
	$(BIN)/python -m pytest -m soak --timeout 3600

test-sglang: $(VENV)/ready ## two real SGLang replicas on this CPU (first run: about 2 minutes and 3 GB)
	tests/sglang_kit/sglang-cpu setup $(SGLANG_KIT)
	PARROT_SGLANG_KIT=$(SGLANG_KIT) $(BIN)/python -m pytest -m sglang --timeout 600

test-vllm: $(VENV)/ready ## a real vLLM on this CPU (first run: about 4 minutes and 5 GB)
	tests/vllm_kit/vllm-cpu setup $(VLLM_KIT)
	PARROT_VLLM_KIT=$(VLLM_KIT) $(BIN)/python -m pytest -m vllm --timeout 600

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
