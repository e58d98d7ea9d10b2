# Everything a stranger needs: `make demo`, `make test`. Python 3.11+, git and make are enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
CORES  := $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
# Tests wait for processes now and then: three share two cores. With four, a process may take seconds to start.
WORKERS ?= $(shell echo $$(( $(CORES) < 4 ? ($(CORES) * 3 + 1) / 2 : 6 )))
# Snapshots are compared without it, and only it can write them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -p no:inline_snapshot

.PHONY: demo test check bench faults mutants clean format

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: $(COMPILED)
	@$(PYTEST) -n $(WORKERS) --dist worksteal

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

# Every system call on our own files fails once, and zot dies at each: minutes. The tests try a few of them.
faults: $(STAMP)
	@$(BIN)/python scripts/faults.py

# Small changes to the source, one at a time: which of them does no test notice? MUTANTS="--seed 1 --only journal"
mutants: $(STAMP)
	@$(BIN)/python scripts/mutants.py $(MUTANTS)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "zot needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Try: make PYTHON=/path/to/python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable . $(shell sed -n '/^dev = \[/,/^]/p' pyproject.toml | grep -o '"[^"]*"')
	@$(BIN)/python -m compileall -qq -j $(CORES) $(VENV)/lib || true # pip would do it on one core
	@touch $@

# Otherwise every worker compiles every test the first time. What is wrong with one is said when it is run.
$(COMPILED): $(STAMP)
	@find tests -name 'test_*.py' | xargs -P $(CORES) -n 128 env $(PYTEST) --collect-only -qq >$@ 2>&1 || true

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
