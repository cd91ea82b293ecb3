#!/usr/bin/env bash
# The tests: first those of the code by itself (timed: they should stay under 30 s; two processes share them), then what
# takes longer (error rates over a thousand trials; answers of the model libraries), then of the documents and the
# house's rules, then those that start real servers: two files at once where no verdict of a test rests on a time or a
# rate, the others one by one, because servers would share the cores.
# All parts run, whichever fails.
set -euo pipefail
cd "$(dirname "$0")/.."
# Compiled modules are kept: every test process and every child would compile them anew.
unset PYTHONDONTWRITEBYTECODE
# Builds, recipes and sources of features; not torch training, whose threads spin for cores that another has. What is new
# is run alone until it stands here.
untimed=()
for name in build build_children build_device_time build_export build_from_registry build_refusals build_spoiled \
    build_terminal client client_page client_stray fuzz_http grpc_services postgres_source recipes_fusions \
    recipes_openvino redis_store shared_predictions sqlite_source tritonclient_grpc tritonclient_http; do
    file=tests/integration/test_$name.py
    if [[ -f $file ]]; then untimed+=("$file"); fi
done
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
run "docs" tests/docs -n 2 --dist loadfile
run "integration, two files at once" "${untimed[@]}" -n 2 --dist loadfile --durations=10
run "integration, one by one" tests/integration "${untimed[@]/#/--ignore=}" --durations=10
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
