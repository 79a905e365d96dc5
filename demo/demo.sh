#!/usr/bin/env bash
# The demo: a throwaway Postgres, the daemon, three tables that fill themselves with leased ids, and
# the proof that all keys are distinct. STORE=postgres (default) keeps the leases in the same server,
# STORE=etcd in a real etcd. Everything that is started here is stopped here.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STORE=${STORE:-postgres}
ROWS_PER_TABLE=100000
CLIENTS=8
TRANSACTIONS_PER_CLIENT=1250
PGBENCH_ROWS=$((CLIENTS * TRANSACTIONS_PER_CLIENT))
COPY_ROWS=$(((ROWS_PER_TABLE - PGBENCH_ROWS) / 2))
SELECT_ROWS=$((ROWS_PER_TABLE - PGBENCH_ROWS - COPY_ROWS))

case $STORE in postgres | etcd) ;; *) die -2 "STORE=$STORE: known stores are postgres and etcd" ;; esac
find_postgres

build() {
    say "building the extension for PostgreSQL $PG_MAJOR and the daemon (minutes the first time, seconds later)"
    require_cargo
    require_install_rights
    # What is shown here needs no Kafka and no archive: their libraries alone take minutes to build.
    cargo build --locked -p idgen-daemon --no-default-features --bins
    note "installing the extension into this machine's PostgreSQL $PG_MAJOR: the server loads it from nowhere else"
    "$ROOT/make/install.sh" extension
}

start_server() {
    say "starting a throwaway PostgreSQL $PG_MAJOR"
    start_postgres
    note "socket in $SCRATCH, shared_preload_libraries = 'pg_idgen', extension created"
}

write_config() {
    cat <<TOML
name = "demo"
[postgres]
url = "host=$SCRATCH port=5432 user=idgend dbname=demo"
[workers]
count = 2
[http]
listen = ""
TOML
    case $STORE in
        postgres) printf '[store]\nkind = "postgres"\n' ;;
        etcd) printf '[store]\nkind = "etcd"\nendpoints = ["%s"]\nprefix = "/pg_idgen/demo"\n' "$ETCD_ENDPOINT"
            # With etcd the clock must be synchronised; a machine that runs a demo need not be.
            printf '[clock]\ncheck = "off"\n' ;;
    esac
}

start_daemon() {
    if [ "$STORE" = etcd ]; then
        say "starting a real etcd"
        etcd_start "$SCRATCH/etcd"
        note "$ETCD_ENDPOINT"
    fi
    say "starting the daemon; its leases live in $STORE"
    write_config >"$SCRATCH/idgend.toml"
    start_idgend 30
}

load() {
    say "loading $((3 * ROWS_PER_TABLE)) rows into orders (snowflake), events (uuidv7) and invoices (segment)"
    in_demo -f demo/schema.sql >/dev/null
    note "COPY: $COPY_ROWS rows into each table"
    seq 1 "$COPY_ROWS" | in_demo -c '\copy orders (customer) FROM pstdin'
    seq 1 "$COPY_ROWS" | in_demo -c '\copy events (payload) FROM pstdin'
    seq 1 "$COPY_ROWS" | in_demo -c '\copy invoices (cents) FROM pstdin'
    note "INSERT … SELECT: $SELECT_ROWS rows into each table"
    in_demo -v rows="$SELECT_ROWS" -f demo/insert-select.sql
    note "pgbench: $CLIENTS concurrent clients, $PGBENCH_ROWS transactions, a row in each table by each"
    "$PG_BIN/pgbench" -n -c "$CLIENTS" -j 2 -t "$TRANSACTIONS_PER_CLIENT" -f demo/pgbench.sql \
        -h "$SCRATCH" -p 5432 -U postgres demo >"$SCRATCH/pgbench.log" 2>&1 ||
        { cat "$SCRATCH/pgbench.log"; die "pgbench failed"; }
    sed -n 's/^tps = \([0-9]*\).*/    \1 transactions per second/p' "$SCRATCH/pgbench.log"
}

prove() {
    say "proof: every key of every table is distinct"
    in_demo -v expected=$((3 * ROWS_PER_TABLE)) -f demo/proof.sql
    say "what the ids say"
    in_demo -f demo/show.sql
    say "idgenctl status"
    "$IDGENCTL" status --config "$SCRATCH/idgend.toml"
}

stop() {
    say "stopping"
    local status=0 pid=$IDGEND_PID
    IDGEND_PID=''
    stop_process "$pid" 10 || status=$?
    [ "$status" -eq 0 ] || die "the daemon ended with status $status instead of 0"
    note "daemon: leases released, exit 0"
    cluster_stop "$SCRATCH"
    note "server stopped"
    if [ -n "$ETCD_PID" ]; then
        pid=$ETCD_PID ETCD_PID=''
        stop_process "$pid" 10 || true
        note "etcd stopped"
    fi
}

trap cleanup EXIT
trap 'exit 130' INT TERM
build
SCRATCH=$(scratch_dir demo)
start_server
start_daemon
load
prove
stop
printf '%sthe demo is complete: %d rows, %d distinct keys, %d s%s\n' \
    "$GREEN" $((3 * ROWS_PER_TABLE)) $((3 * ROWS_PER_TABLE)) "$SECONDS" "$PLAIN"
