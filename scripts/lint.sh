#!/usr/bin/env bash
# Everything that is judged without running it.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
run() {
    echo "+ $*"
    "$@"
}
run .venv/bin/ruff check --quiet .
run .venv/bin/ruff format --check --quiet .
run .venv/bin/mypy --no-error-summary
run .venv/bin/lint-imports --no-logo
echo "lint passed in $((SECONDS - started)) s"
