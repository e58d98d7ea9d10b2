# Everything a stranger needs: `make demo`, `make test`. Python 3.11+, git and make are enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tests wait for processes now and then: three share two cores.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(6, (os.cpu_count() or 1) * 3 // 2 or 1))')

.PHONY: demo test check bench clean format

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: $(STAMP)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_architecture.py

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)
	@$(BIN)/python bench/run.py

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "zot needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Try: make PYTHON=/path/to/python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . $(shell sed -n '/^dev = \[/,/^]/p' pyproject.toml | grep -o '"[^"]*"')
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
