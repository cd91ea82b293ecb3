#!/usr/bin/env bash
# The tests: first those of the code by itself (timed: they should stay under 30 s; two processes share them), then what
# takes longer (error rates over a thousand trials; answers of the model libraries), then of the documents and the
# house's rules, then those that start real servers: one by one, servers would share the cores.
# All parts run, whichever fails.
set -euo pipefail
cd "$(dirname "$0")/.."
# Compiled modules are kept: every test process and every child would compile them anew.
unset PYTHONDONTWRITEBYTECODE
failed=()
run() {
    local what=$1 started=$SECONDS
    shift
    echo "+ pytest $*"
    .venv/bin/python -m pytest "$@" || failed+=("$what")
    echo "$what took $((SECONDS - started)) s"
}
run "unit, property and concurrency" tests/unit tests/property tests/concurrency -n 2 --durations=5
run "simulations and libraries" tests/simulation tests/libraries -n 2 --durations=5
run "docs" tests/docs
run "integration" tests/integration --durations=10
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
