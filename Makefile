# The verbs of this project, for people and for CI.
# They need Python 3.11 or newer, make and a package index, and nothing else beforehand.

.DEFAULT_GOAL := help
.PHONY: help sync test check fix docs demo bench soak load lock clean

PYTHON ?= python3
# One more than there are cores: tests wait about a fifth of their time, for an election, a disk or a process.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PYTEST := $(BIN)/pytest -q -n $(WORKERS) --maxprocesses=8 --dist=worksteal
# The tests of the bus run first and by themselves, so that only they pay for counting the branches that they take.
# With ARGS, which choose a part, nothing is counted.
BUS_TESTS := $(wildcard tests/bus tests/rules/bus tests/contract/mesh_store)
BRANCHES := --cov --cov-report=json:$(VENV)/coverage.json
UV := $(BIN)/uv --quiet --system-certs

# The caller's shell may set these for its own ends; here they would slow every start (no bytecode is kept)
# or lead the tools to another environment.
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET

help: ## list the verbs
	@$(PYTHON) -c "import re; [print(f'make {v:6} {t}') for v, t in re.findall(r'(?m)^(\w+):.*?## (.*)', open('Makefile').read())]"

sync: $(VENV)/.synced ## make or mend .venv, exactly as requirements.lock says

test: sync ## everything CI asks for: check, then all tests; says what it skipped and why
	@$(MAKE) --no-print-directory -j2 check $(VENV)/spark.jsa
ifeq ($(strip $(ARGS)),)
	@failed=0; rm -f $(VENV)/coverage.json; \
	$(PYTEST) $(BUS_TESTS) $(BRANCHES) || failed=1; \
	$(BIN)/python tools/branch_coverage.py $(VENV)/coverage.json || failed=1; \
	$(PYTEST) $(BUS_TESTS:%=--ignore=%) || failed=1; \
	exit $$failed
else
	$(PYTEST) $(ARGS)
endif

check: sync ## the fast part of test: format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fix: sync ## format the code, mend what the linter can mend, and rewrite the reference pages
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .
	$(BIN)/python tools/reference.py

docs: sync ## write the reference pages that come from the code
	$(BIN)/python tools/reference.py

demo: sync ## watch real homes at work
	$(BIN)/holdfast demo $(ARGS)

bench: sync ## measure ratios against the bare engine and rivals; one file with ONLY=vectors
	$(BIN)/python -m bench $(ONLY)

soak: sync ## the tests again and again with fresh seeds, for SOAK_HOURS (1)
	$(BIN)/python tools/soak.py $(ARGS)

load: sync ## a mixed load on a broker and three nodes, for MINUTES (10); ARGS=--postgres
	$(BIN)/python tools/load.py --minutes $(or $(MINUTES),10) $(ARGS)

lock: sync ## rewrite requirements.lock; BEFORE=2027-01-31 first moves the date it may look back from
	$(BIN)/python tools/lock.py $(BEFORE)

clean: ## remove .venv and everything else that can be made again
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo build dist uv.lock
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} +

# uv itself comes from the lock by hash, through the pip that every venv starts with.
$(BIN)/uv:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Holdfast needs Python 3.11 or newer: make PYTHON=python3.12 ...')"
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PYTHON) -c "import re; print(*re.findall(r'(?ms)^uv==.*?(?=^\S|\Z)', open('requirements.lock').read()))" > $(VENV)/uv.txt
	@$(PIP) install --require-hashes -r $(VENV)/uv.txt

# Where pip has been told of an index or a certificate and uv has not, pip installs the same hashes, only slower.
# The lock is complete, and one package in it declares torch, which nobody uses: hence --no-deps.
$(VENV)/.synced: pyproject.toml requirements.lock $(BIN)/uv
	@$(UV) pip sync --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock || { \
	  echo "uv could not; trying pip" >&2; \
	  $(PIP) install --no-deps --require-hashes -r requirements.lock; }
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# Tests start Spark a dozen times, and from this file each time takes half as long. It is made once per environment,
# on the core that the type checker leaves.
$(VENV)/spark.jsa: $(VENV)/.synced
	@PYTHONPATH=tests $(BIN)/python -m support.java_archive $@
