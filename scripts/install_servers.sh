#!/usr/bin/env bash
# Install PostgreSQL, PgBouncer, Redis, Prometheus, its Alertmanager and Chromium with apt-get where their binaries are
# missing and this user may. Only the binaries are needed: tests and the example start private servers on free ports.
# Says what it could not do; that is an error only where REQUIRE_SERVERS=1 (as in CI).
set -euo pipefail

has_postgres() {
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

has_pgbouncer() {
    command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]]
}

has_redis() {
    command -v redis-server >/dev/null
}

has_prometheus() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null
}

has_alertmanager() {
    command -v prometheus-alertmanager >/dev/null && command -v amtool >/dev/null
}

has_chromium() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}

missing() {
    has_postgres || echo postgresql
    has_pgbouncer || echo pgbouncer
    has_redis || echo redis-server
    has_prometheus || echo prometheus
    has_alertmanager || echo prometheus-alertmanager
    has_chromium || echo chromium
}

packages=$(missing | xargs)
if [[ -z $packages ]]; then
    exit 0
fi
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "installing $packages"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # shellcheck disable=SC2086  # a list of package names
    if ! { apt-get update -q && apt-get install -q -y --no-install-recommends $packages; } >"$log" 2>&1; then
        echo "apt-get could not install them:" >&2
        tail -n 5 "$log" >&2
    fi
    rm -f "$log"
fi
packages=$(missing | xargs)
if [[ -n $packages ]]; then
    echo "not installed: $packages. What needs them is left out; to have it: apt-get install $packages (as root)" >&2
    if [[ ${REQUIRE_SERVERS:-} == 1 ]]; then
        echo "error: REQUIRE_SERVERS=1 and they are missing" >&2
        exit 1
    fi
fi
