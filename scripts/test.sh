#!/usr/bin/env bash
# The tests: first what needs no server (timed: it should stay under 30 s), then what starts real ones.
set -euo pipefail
cd "$(dirname "$0")/.."
run() {
    local what=$1 started=$SECONDS status=0
    shift
    echo "+ pytest $*"
    .venv/bin/python -m pytest "$@" || status=$?
    echo "$what took $((SECONDS - started)) s"
    return "$status"
}
run "unit, property, concurrency and docs" -m "not integration" --durations=5
run "integration" -m integration --durations=10
