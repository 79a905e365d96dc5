#!/usr/bin/env bash
# What both demos start in the same way, and stop on every way out. Sourced by demo.sh and full.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../make/lib.sh"

SCRATCH='' IDGEND_PID='' ETCD_PID='' KAFKA_PID='' S3_PID=''

# The daemon of a demo need not be a release build; tests share this one, which saves minutes.
IDGEND=$CARGO_TARGET_DIR/debug/idgend
IDGENCTL=$CARGO_TARGET_DIR/debug/idgenctl

in_demo() { "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 -h "$SCRATCH" -p 5432 -U postgres -d demo "$@"; }
ask() { in_demo -A -t -c "$1"; }

# Runs on every way out, Ctrl-C included.
cleanup() {
    local status=$? pid
    trap - EXIT INT TERM
    # Whoever interrupts knows why.
    case $status in 0 | 130) ;; *) if [ -n "$SCRATCH" ]; then show_logs; fi ;; esac
    if [ -n "$IDGEND_PID" ]; then stop_process "$IDGEND_PID" 20 || true; fi
    if [ -n "$SCRATCH" ]; then cluster_stop "$SCRATCH" immediate || true; fi
    for pid in $ETCD_PID $KAFKA_PID $S3_PID; do stop_process "$pid" 20 || true; done
    if [ -n "$SCRATCH" ]; then rm -rf "$SCRATCH"; fi
    [ "$status" -eq 0 ] || printf '%serror:%s the demo failed\n' "$RED" "$PLAIN" >&2
    exit "$status"
}

show_logs() {
    local log
    for log in server.log idgend.log etcd/etcd.log kafka/kafka.log s3.log; do
        [ -s "$SCRATCH/$log" ] || continue
        say "last lines of $log"
        tail -n 40 "$SCRATCH/$log"
    done
}

# A cluster with a database, the extension in it, and a role for the daemon.
start_postgres() {
    cluster_init "$SCRATCH" "shared_preload_libraries = 'pg_idgen'" "max_connections = 40"
    cluster_start "$SCRATCH"
    "$PG_BIN/createdb" -h "$SCRATCH" -p 5432 -U postgres demo
    in_demo -c 'CREATE EXTENSION pg_idgen' -c 'CREATE ROLE idgend LOGIN' -c "SELECT idgen.grant_daemon('idgend')" >/dev/null
}

# start_idgend SECONDS: with the configuration of the scratch directory; so long it may take until the server mints.
start_idgend() {
    "$IDGEND" --config "$SCRATCH/idgend.toml" >"$SCRATCH/idgend.log" 2>&1 </dev/null &
    IDGEND_PID=$!
    wait_until "$1" serving || die "no lease within $1 s"
    note "leases are installed, the server mints"
}

serving() {
    kill -0 "$IDGEND_PID" 2>/dev/null || die "the daemon has ended"
    [ "$(ask 'SELECT state FROM idgen.health')" = serving ]
}
