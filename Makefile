# The verbs of this project, for people and for CI.
# They need Python 3.11 or newer, make and a package index, and nothing else beforehand.

.DEFAULT_GOAL := help
.PHONY: help sync test check fix docs site demo bench soak load lock clean

PYTHON ?= python3
# One more than there are cores: tests wait about a fifth of their time, for an election, a disk or a process.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PYTEST_OPTIONS := -q -n $(WORKERS) --maxprocesses=8 --dist=worksteal
PYTEST := $(BIN)/pytest $(PYTEST_OPTIONS)
# The tests of bus, rules and storage run first and by themselves, so that only they pay for counting the branches that they take.
# With ARGS, which choose a part, nothing is counted.
COUNTED_TESTS := $(wildcard tests/bus tests/rules tests/contract tests/storage)
# Some tests run once more with the lowest versions that pyproject.toml allows: those that use every dependency for real.
LOWEST := $(VENV)/lowest
LOWEST_TESTS := tests/transport/test_http_server.py tests/transport/test_tls.py tests/transport/test_websocket_client.py \
	tests/bus/links/test_links.py tests/bus/links/test_over_tls.py tests/bus/discovery/test_loopback.py \
	tests/storage/sqlite/test_vector_index.py tests/storage/broker/postgres/test_store.py \
	tests/rules/test_fingerprint.py tests/rules/test_keys.py tests/node/http/test_send.py \
	tests/service/http/test_arrow_read_back.py tests/apps/cli/test_serving_log.py tests/tidy/test_lowest.py
# What the compiled part does is tried once more without it.
COMPILED := $(wildcard src/holdfast/rules/_*.[ch])
PURE_TESTS := tests/node/core/test_intake.py tests/node/links/test_receive.py tests/broker/test_push.py tests/broker/test_session.py tests/broker/test_groups.py tests/broker/test_strangers.py \
	tests/contract/broker_store tests/storage/broker/sqlite tests/node/core/runs tests/simulate/delivery \
	tests/faults/test_broker_store_kill9.py tests/faults/test_broker_store_disk.py tests/faults/test_broker_store_failed_sync.py \
	-k "not postgres"
BRANCHES := --cov --cov-report=json:$(VENV)/coverage.json
UV := $(BIN)/uv --quiet --system-certs

# The caller's shell may set these for its own ends; here they would slow every start (no bytecode is kept)
# or lead the tools to another environment.
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET

help: ## list the verbs
	@$(PYTHON) -c "import re; [print(f'make {v:6} {t}') for v, t in re.findall(r'(?m)^(\w+):.*?## (.*)', open('Makefile').read())]"

sync: $(VENV)/.synced ## make or mend .venv, exactly as requirements.lock says

test: sync ## everything CI asks for: check, then all tests; says what it skipped and why
	@$(MAKE) --no-print-directory -j2 check $(VENV)/spark.jsa $(VENV)/.browser $(LOWEST)/.synced
ifeq ($(strip $(ARGS)),)
	@failed=0; rm -f $(VENV)/coverage.json; \
	$(PYTEST) $(COUNTED_TESTS) $(BRANCHES) || failed=1; \
	$(BIN)/python tools/branch_coverage.py $(VENV)/coverage.json || failed=1; \
	$(PYTEST) $(COUNTED_TESTS:%=--ignore=%) || failed=1; \
	HOLDFAST_PURE=1 $(PYTEST) $(PURE_TESTS) || failed=1; \
	$(LOWEST)/bin/pytest $(PYTEST_OPTIONS) -W ignore::DeprecationWarning $(LOWEST_TESTS) || failed=1; \
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

site: sync ## build the site of the documentation, strict, and say where it is
	@$(BIN)/python -m tools.site $(ARGS)

demo: sync ## watch real homes at work
	$(BIN)/holdfast demo $(ARGS)

bench: sync ## measure ratios against the bare engine and rivals; one file with ONLY=vectors
	$(BIN)/python -m bench $(ONLY)

soak: sync ## the tests again and again with fresh seeds, for SOAK_HOURS (1)
	$(BIN)/python tools/soak.py $(ARGS)

load: sync ## a mixed load on a broker and three nodes, for MINUTES (10); ARGS=--postgres
	$(BIN)/python tools/load.py --minutes $(or $(MINUTES),10) $(ARGS)

lock: sync ## rewrite both locks; BEFORE=2027-01-31 first moves the date it may look back from
	$(BIN)/python tools/lock.py $(BEFORE)

clean: ## remove .venv and everything else that can be made again
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo build dist uv.lock
	rm -f src/holdfast/rules/*.so
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
$(VENV)/.synced: pyproject.toml requirements.lock packaging/compiled_part.py $(COMPILED) $(BIN)/uv
	@$(UV) pip sync --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock || { \
	  echo "uv could not; trying pip" >&2; \
	  $(PIP) install --no-deps --require-hashes -r requirements.lock; }
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c "from holdfast.rules.compiled import reader; reader() == 'compiled' or print('no compiled part: Holdfast runs as pure Python')" >&2
	@touch $@

# The same in an environment of its own, from the lock of the lowest versions.
$(LOWEST)/.synced: pyproject.toml requirements-lowest.lock $(VENV)/.synced
	@$(BIN)/python -m venv --clear $(LOWEST)
	@$(UV) pip sync --python $(LOWEST)/bin/python --require-hashes --compile-bytecode requirements-lowest.lock || { \
	  echo "uv could not; trying pip" >&2; \
	  $(LOWEST)/bin/python -m pip --disable-pip-version-check -qq install --no-deps --require-hashes -r requirements-lowest.lock; }
	@$(UV) pip install --python $(LOWEST)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

# Tests start Spark a dozen times, and from this file each time takes half as long. It is made once per environment,
# on the core that the type checker leaves.
$(VENV)/spark.jsa: $(VENV)/.synced
	@PYTHONPATH=tests $(BIN)/python -m support.java_archive $@

# The browser that walks the console: one that is on the machine, else one that is fetched here, before the tests that need it.
$(VENV)/.browser: $(VENV)/.synced tests/support/browser.py
	@PYTHONPATH=tests $(BIN)/python -m support.browser >/dev/null
	@touch $@
