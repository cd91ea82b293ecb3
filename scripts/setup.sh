#!/usr/bin/env bash
# Make .venv and install tailcut into it, editable, with everything that development needs, at the exact versions of
# constraints.txt. PYTHON names the interpreter; else the newest of those that the project supports is taken.
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            command -v "$name"
            return
        fi
    done
    echo "error: no Python 3.11 or later found${PYTHON:+ (PYTHON=$PYTHON)}" >&2
    echo >&2
    echo "hint: install python3.11 (with its venv module), or name one: make setup PYTHON=/path/to/python3" >&2
    return 1
}

if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    if ! "$python" -m venv --clear .venv; then
        echo "error: $python cannot make a virtual environment" >&2
        echo >&2
        echo "hint: Debian and Ubuntu keep the venv module apart: apt-get install python3-venv" >&2
        exit 1
    fi
fi
echo "installing into .venv (minutes the first time, seconds later)"
started=$SECONDS
.venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt -e '.[dev]'
echo "installed in $((SECONDS - started)) s"
