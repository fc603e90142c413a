# Two commands on a fresh clone: `make test` and `make demo`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint types check slow results clean

demo: $(INSTALLED)
	$(BIN)/python -m multibranch demo

test: lint types check

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# On a busy machine two threads that spin while they wait for each other can wait for minutes.
check slow: export OMP_WAIT_POLICY = passive

check: $(INSTALLED)
	$(BIN)/pytest -n 2 -m "not slow"

slow: $(INSTALLED)
	$(BIN)/pytest -m slow

# docs/results.md from the recorded runs in benchmarks/results.
results: $(INSTALLED)
	$(BIN)/python benchmarks/results_page.py

# torch is installed first and pinned, so that no looser requirement fetches another build of it.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard src/multibranch/nn/*.[ch])
	@echo "Setting up $(VENV): PyTorch and the rest. This takes some minutes, in which pip says nothing."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "$$(grep '^torch==' constraints.txt)"
	$(PIP) install --quiet --constraint constraints.txt --editable ".[all,dev]"
	touch $@

clean:
	rm -rf $(VENV) runs/demo .mypy_cache .pytest_cache .ruff_cache
