# Commands, each complete on a machine with python3 (3.11 or newer) and make:
#   make demo      speculative decoding of the embedded model, verified against raw decoding
#   make test      formatting, types, import rules and tests, without a GPU
#   make notebooks JupyterLab over notebooks/, where to look and play
#   make clients   coding clients from npm do a task against the server (1.3 GB, some minutes)
# All set up .venv first, where it is missing or pyproject.toml has changed.

PYTHON ?= python3
TORCH ?= torch>=2.11
WORKERS ?= 2
BIN := .venv/bin
export TORCH

.PHONY: demo test notebooks clients

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

notebooks:
	@$(PYTHON) tools/environment.py --notebooks
	@$(BIN)/python -m jupyterlab --LabApp.default_url=/lab/tree/notebooks

clients: export OMP_NUM_THREADS := 1
clients:
	@$(PYTHON) tools/environment.py --dev
	$(BIN)/python -m pytest -m clients -s -rs tests/clients
