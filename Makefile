# Two commands, each complete on a machine with python3 (3.11 or newer) and make:
#   make demo   speculative decoding of the embedded model, verified against raw decoding
#   make test   formatting, types, import rules and tests, without a GPU
# Both set up .venv first, where it is missing or pyproject.toml has changed.

PYTHON ?= python3
TORCH ?= torch>=2.11
WORKERS ?= 2
BIN := .venv/bin
export TORCH

.PHONY: demo test

demo:
	@$(PYTHON) tools/environment.py
	@$(BIN)/python -m tr.experiment +exp=dflash2_verify

test: export OMP_NUM_THREADS := 1
test:
	@$(PYTHON) tools/environment.py --dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m "not gpu" -n $(WORKERS)
