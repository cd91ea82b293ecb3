#!/usr/bin/env bash
# Lint and all tests, in parts, so that two cores have work all the time and no verdict on a time or a rate meets a
# neighbour:
#   1. the code by itself (timed: this part should stay under 30 s), two processes;
#   2. what takes longer (error rates over a thousand trials; answers of the model libraries), the documents and the
#      house's rules, two processes; lint, which has one process for most of its time, beside them;
#   3. what starts real servers, builds and trains, two files at once, where no verdict rests on a time or a rate
#      (pytest.mark.parallel);
#   4. the others, one by one, and what needs a GPU, which is skipped where there is none.
# All parts run, whichever fails.
set -euo pipefail
cd "$(dirname "$0")/.."
# Compiled modules are kept: every test process and every child would compile them anew.
unset PYTHONDONTWRITEBYTECODE
began=$SECONDS
failed=()
took=()
tests() {
    local what=$1 started=$SECONDS
    shift
    echo "+ pytest $*"
    .venv/bin/python -m pytest "$@" || failed+=("$what")
    took+=("$((SECONDS - started)) s  $what")
}
two() {
    # Threads of OpenMP (of torch, scikit-learn, LightGBM and XGBoost) spin for as long as they wait for one another,
    # which is long where two processes share two cores: asleep they leave the core to the one that they wait for.
    OMP_WAIT_POLICY=PASSIVE tests "$@" -n 2
}
lint_log=$(mktemp)
lint=
# shellcheck disable=SC2329  # called by the trap
stop() {
    if [[ -n $lint ]]; then kill -- "-$lint" 2>/dev/null || true; fi
    rm -f "$lint_log"
}
trap stop EXIT

two "unit, property and concurrency" tests/unit tests/property tests/concurrency --durations=5
set -m # a process group of its own, so that Ctrl-C here ends what it started too
scripts/lint.sh >"$lint_log" 2>&1 &
lint=$!
set +m
two "simulations, libraries and documents (and lint)" tests/simulation tests/libraries tests/docs --dist loadfile \
    --durations=10
wait "$lint" || failed+=("lint")
lint=
cat "$lint_log"
two "integration, two files at once" tests/integration tests/matrix tests/sequences -m parallel --dist loadfile \
    --durations=10
tests "integration, one by one, and what needs a GPU" tests/integration tests/gpu -m "not parallel" -rfEs --durations=10

printf '%s\n' "${took[@]}" "$((SECONDS - began)) s  in all"
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
