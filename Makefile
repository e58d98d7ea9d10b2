# Everything a stranger needs: `make demo`, `make test`. Python 3.11+, git and make are enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
CORES  := $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
# Tests wait for processes and deadlines for more than half of their time: five workers keep two cores busy.
WORKERS ?= $(shell echo $$(( $(CORES) < 4 ? ($(CORES) * 5 + 1) / 2 : $(CORES) * 2 )))
# Snapshots are compared without it, and only it can write them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -p no:inline_snapshot

# Which tests are run: all of them, or the files and directories that are named.
TESTS ?= tests
# What may differ between Pythons: protocols, the loop, schemas, limits of nesting and size, files, the journal.
QUICK := tests/wire tests/agent tests/docs/test_schema.py tests/journal tests/serve/daemon/test_hostile.py \
	tests/serve/daemon/test_handover.py tests/serve/test_bad_input.py tests/serve/test_traces.py \
	tests/providers/test_http_connect.py tests/extensions/test_peer.py
# Further Pythons of this machine, one of each version. Each gets an environment of its own inside $(VENV).
PYTHONS ?= $(shell $(PYTHON) scripts/pythons.py)
# How much of the faults is tried: "--sample 50", "--only prompt".
FAULTS ?=

.PHONY: demo test test-all test-quick check attacks web-test bench clean format lab-agents acp-clients mcp-conformance faults mutants lock docs release fleet-test fleet-demo manifests

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: $(COMPILED)
	@$(PYTEST) --forks $(WORKERS) $(TESTS)

# The suite on every Python that this machine has. CI runs test-quick: a part of it on all but the default one.
test-all: test
	$(call on_further_pythons,$(TESTS))

test-quick: $(STAMP)
	$(call on_further_pythons,$(QUICK))

define on_further_pythons
@failed=""; for python in $(PYTHONS); do \
	version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); echo "Python $$version:"; \
	$(MAKE) --no-print-directory test PYTHON=$$python VENV=$(VENV)/python$$version TESTS="$(1)" || failed="$$failed $$version"; \
done; if [ -n "$$failed" ]; then echo "failed on Python$$failed"; exit 1; fi
endef

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_architecture.py

# All attacks, also the slow ones. Root runs them twice, the second time as a user without rights. The fast ones are in
# `make test`, too.
attacks: $(STAMP)
	@ZOT_ATTACKS=all $(PYTEST) --forks $(WORKERS) tests/attacks
	@ZOT_ATTACKS=unprivileged PYTHONDONTWRITEBYTECODE=1 $(BIN)/python scripts/unprivileged.py \
		$(BIN)/python -m pytest -p no:inline_snapshot --forks $(WORKERS) tests/attacks

# The dashboard in a real browser: every view, hundreds of lost connections, long sessions, accessibility. A minute or two.
# PICTURES=DIR also saves screenshots there; AXE=DIR is where npm has installed axe-core.
web-test: $(STAMP)
	@ZOT_WEB=all $(PYTEST) --forks 2 tests/dashboard
	@if [ -n "$(PICTURES)" ]; then $(BIN)/python scripts/dashboard_pictures.py $(PICTURES); fi

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)
	@$(BIN)/python bench/run.py

# Real agents from npm and PyPI, installed on the first run. AGENTS="codex pi --scene shell" runs a part.
lab-agents: $(STAMP)
	@$(BIN)/python scripts/lab_agents.py $(AGENTS)

# zot's MCP client and real servers, from npm. MCP="--only servers" runs a part.
mcp-conformance: $(STAMP)
	@$(BIN)/python scripts/mcp_conformance.py $(MCP)

# Real clients of the Agent Client Protocol from npm, installed on the first run, and the tests against its published schema.
acp-clients: $(STAMP)
	@$(BIN)/python scripts/acp_clients.py

# Every system call on our own files fails once, and zot dies at each: minutes. The tests try a few of them, CI some more.
faults: $(STAMP)
	@$(BIN)/python scripts/faults.py $(FAULTS)

# Three workers, two gateways, 200 sessions; workers are killed and frozen, networks cut, connections dropped, the database
# restarted. FLEET="--nightly --seed 7" takes ten minutes.
fleet-test: $(STAMP)
	@$(BIN)/python scripts/fleet.py $(FLEET)

# The Compose file and the Kubernetes manifests, against their schemas. Installs these on the first run.
manifests: $(STAMP)
	@$(BIN)/python scripts/manifests.py

# A fleet on this machine: a worker is killed in the middle, and nothing is lost.
fleet-demo: $(STAMP)
	@$(BIN)/python scripts/fleet.py --demo

# Small changes to the source, one at a time: which of them does no test notice? MUTANTS="--seed 1 --only journal"
mutants: $(STAMP)
	@$(BIN)/python scripts/mutants.py $(MUTANTS)

# Everything is checked against the hashes in the lock, also what builds zot itself.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "zot needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Try: make PYTHON=/path/to/python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-index --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -qq -j $(CORES) $(VENV)/lib || true # pip would do it on one core
	@touch $@

# Otherwise every worker compiles every test the first time. What is wrong with one is said when it is run.
$(COMPILED): $(STAMP)
	@find $(TESTS) -name 'test_*.py' | xargs -P $(CORES) -n 128 env $(PYTEST) --collect-only -qq >$@ 2>&1 || true

# The documentation as a site with search, in build/docs. Checks links and anchors, and that nothing is loaded from the network.
docs: $(STAMP)
	@$(BIN)/python scripts/docs.py

# After a change of constraints.txt.
lock: $(STAMP)
	@$(BIN)/python scripts/lock.py

# Builds the wheel and the sdist, checks both, installs them with each extra from the index. Uploads nothing.
release: $(STAMP)
	@$(BIN)/python scripts/release.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
