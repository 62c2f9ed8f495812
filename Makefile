# make run opens the dashboard, make test runs every test; both set up .venv/ first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: run test check check-types check-rest bench venv system llama real-models clean

run: venv
	$(BIN)/sapo-desktop

# What failed beside the others runs once more alone, each verb a command instead of a fork (tests/support/verb_server.py):
# green then, it was a race, and its name stands in the output.
# Hundreds of processes start: with their bytecode kept, each compiles nothing.
test: venv system llama real-models
	$(MAKE) -j2 check
	unset PYTHONDONTWRITEBYTECODE; \
	$(BIN)/python -m pytest -n auto --dist worksteal || { \
	  [ $$? -eq 1 ] && TESTS_START_VERBS_ANEW=1 $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

# `make -j2 check` runs the types beside the rest: either takes one processor about as long.
check: check-types check-rest

check-types: venv
	$(BIN)/mypy

check-rest: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/vulture app swarm backends assets packaging tests/support/manual.py  # without tests: what only they keep alive
	$(BIN)/python tests/benchmarks/house.py

bench: venv
	$(BIN)/python tests/benchmarks/run.py

venv: $(STAMP)

# One script decides which torch build fits (CPU build without an NVIDIA driver) and says so.
$(STAMP): pyproject.toml packaging/setup_venv.py packaging/requirements.lock packaging/tools.lock
	$(PYTHON) packaging/setup_venv.py $(VENV)

# Programs that tests need and pip cannot bring (redis-server, chromium).
system: venv
	$(BIN)/python packaging/system_packages.py

# The app does without; the tests of its engine do not.
llama: venv
	$(BIN)/python packaging/llama_engine.py

# A published model of 98 MB for the tests on a real one, into a cache outside the checkout.
real-models: venv
	$(BIN)/python packaging/real_models.py smollm2

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
