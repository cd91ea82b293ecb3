# One target per action; the same ones run in CI. Every target does its own set-up.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
STAMP := .venv/.made-from-pyproject-and-constraints

.PHONY: help setup servers lint check fmt test test-all matrix sequences demo bench-overhead bench-peers bench-overload bench-reload bench-soak docs clean

help:  ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make .venv with everything that development needs

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh
	@touch $@

servers:  ## Install PostgreSQL, PgBouncer and Redis where they are missing (needs root and apt-get)
	@scripts/install_servers.sh

lint: setup  ## ruff, mypy --strict, import-linter
	@scripts/lint.sh

check: lint  ## Lint, types, unit and property tests: no servers, no builds
	OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest tests/unit tests/property tests/concurrency -m "not slow" -n auto --durations=5

fmt: setup  ## Format and mend what can be mended
	$(PY) -m ruff check --fix src examples benchmarks tests scripts
	$(PY) -m ruff format src examples benchmarks tests scripts

test: setup servers  ## Lint and all tests; one part with T=PATH, such as T=tests/unit/gate or T=FILE::TEST
	@$(PY) scripts/run_tests.py $(T)

test-all: setup servers  ## As test, with all of the long statistics, matrices and sequences
	@TEST_ALL=1 $(PY) scripts/run_tests.py $(T)

matrix: setup  ## Models by values by labels by protocols: is what is served the model's own answer? (10 minutes)
	$(PY) -m tests.matrix

sequences: setup  ## 200 random sequences of edits, builds, promotions, restarts, migrations (10 minutes)
	$(PY) -m tests.sequences

demo: setup servers  ## The example from data to the before/after ladder
	@scripts/demo.sh

bench-overhead: setup  ## What tailcut costs above a server that does nothing (needs wrk)
	$(PY) -m benchmarks.overhead

bench-peers: setup  ## tailcut beside FastAPI, Mosec, LitServe, BentoML, MLServer (needs wrk)
	$(PY) -m benchmarks.peers

bench-overload: setup  ## A compute-bound model at 80 % of capacity, in bursts and at 3x (needs wrk)
	$(PY) -m benchmarks.overload

bench-reload: setup  ## Reloads, changes of the pool, loads of another model at half of capacity (needs wrk)
	$(PY) -m benchmarks.reload

bench-soak: setup  ## 30 minutes at 70 % of capacity: does memory grow? (needs wrk)
	$(PY) -m benchmarks.soak --model compute

docs: setup  ## Write the generated reference pages
	$(PY) scripts/generate_docs.py

clean:  ## Remove everything that the targets above made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf .peers test-results
	rm -rf examples/flight_risk/.artifacts examples/flight_risk/.tailcut
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
