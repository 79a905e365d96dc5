#!/usr/bin/env bash
# What an id costs, as ratios taken in one run (DESIGN.md 9): a throwaway cluster with the installed
# extension, the daemon with 1 and then 8 workers. BENCH_ROUNDS (5), BENCH_CALLS (1,000,000), BENCH_ROWS (2,000,000) and
# BENCH_SECONDS (10) change the amounts; SUITE=segments leaves out what is not about segments. It fails when a number does
# not hold. The numbers are for a quiet machine: run it again before you believe that one does not.
source "$(dirname "${BASH_SOURCE[0]}")/../../make/lib.sh"
source "$ROOT/regress/bench/segments.sh"
find_postgres

SUITE=${SUITE:-all}
ROUNDS=${BENCH_ROUNDS:-5}
CALLS=${BENCH_CALLS:-1000000}
ROWS=${BENCH_ROWS:-2000000}
SCRATCH='' IDGEND_PID=''
IDGEND=$CARGO_TARGET_DIR/debug/idgend

db() { "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 -h "$SCRATCH" -p 5432 -U postgres -d postgres "$@"; }

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    if [ "$status" -ne 0 ] && [ -n "$SCRATCH" ]; then
        tail -n 30 "$SCRATCH/server.log" "$SCRATCH/idgend.log" 2>/dev/null || true
    fi
    if [ -n "$IDGEND_PID" ]; then stop_process "$IDGEND_PID" 10 || true; fi
    if [ -n "$SCRATCH" ]; then
        cluster_stop "$SCRATCH" immediate || true
        rm -rf "$SCRATCH"
    fi
    exit "$status"
}

# daemon_with WORKERS: restarts the daemon with that many identities.
daemon_with() {
    if [ -n "$IDGEND_PID" ]; then stop_process "$IDGEND_PID" 10; fi
    cat >"$SCRATCH/idgend.toml" <<TOML
[postgres]
url = "host=$SCRATCH port=5432 user=idgend dbname=postgres"
[workers]
count = $1
[http]
listen = ""
TOML
    "$IDGEND" --config "$SCRATCH/idgend.toml" >>"$SCRATCH/idgend.log" 2>&1 </dev/null &
    IDGEND_PID=$!
    wait_until 30 open_slots_are "$1" || die "no $1 open slots within 30 s"
}

open_slots_are() { [ "$(db -A -t -c "SELECT count(*) FROM idgen.slots WHERE state = 'open'")" = "$1" ]; }

# scaling NAME EXPRESSION: the same loop by one client and by two at once.
scaling() {
    local clients tps
    printf 'SELECT count(%s) FROM (SELECT generate_series(1, %s)) t;\n' "$2" "$CALLS" >"$SCRATCH/scaling.sql"
    for clients in 1 2; do
        tps=$("$PG_BIN/pgbench" -n -c "$clients" -j "$clients" -t "$ROUNDS" -f "$SCRATCH/scaling.sql" \
            -h "$SCRATCH" -p 5432 -U postgres postgres 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p')
        # pgbench counts statements of all clients together; the report wants them per client.
        db -c "INSERT INTO bench_scaling VALUES ('$1', $clients, $tps / $clients)"
    done
}

# counting: the same loop with and without the counters of idgen.stats, in turn. In one session, because another one
# would begin at another worker; it takes a reload in between two statements, hence the many that wait for it. Three
# times the rounds: what is measured is 3 % of a loop.
counting() {
    local nth setting
    for ((nth = 0; nth < 3 * ROUNDS; nth++)); do
        for setting in on off; do
            cat <<SQL
\o /dev/null
ALTER SYSTEM SET idgen.track_ids = $setting;
SELECT pg_reload_conf();
SELECT \$\$SELECT pg_sleep(0.02) WHERE current_setting('idgen.track_ids') <> '$setting'\$\$ FROM generate_series(1, 200) \gexec
\o
SELECT 1 / (current_setting('idgen.track_ids') = '$setting')::int AS reloaded \g /dev/null
CALL bench_calls(1, $CALLS, ARRAY[['counted: $setting', 'idgen_snowflake()']]);
SQL
        done
    done >"$SCRATCH/counting.sql"
    db -f "$SCRATCH/counting.sql"
    db -c "ALTER SYSTEM RESET idgen.track_ids" -c "SELECT pg_reload_conf()" >/dev/null
}

prepare() {
    SCRATCH=$(scratch_dir bench)
    say "throwaway PostgreSQL $PG_MAJOR, $ROUNDS rounds of $CALLS calls"
    cluster_init "$SCRATCH" "shared_preload_libraries = 'pg_idgen'" "shared_buffers = 512MB" \
        "max_wal_size = 8GB" "checkpoint_timeout = 1h" "jit = off" "max_parallel_workers_per_gather = 0" \
        "autovacuum = off"
    cluster_start "$SCRATCH"
    db -c 'CREATE EXTENSION pg_idgen' -c 'CREATE ROLE idgend LOGIN' -c "SELECT idgen.grant_daemon('idgend')" >/dev/null
    db -c "SELECT idgen_create_segment('bench', step => 1000000, max_step => 1000000)" >/dev/null
    db -f regress/bench/measure.sql
}

# Of all generators; the first three are what those of segments are compared with.
calls() {
    db -c "CALL bench_calls($ROUNDS, $CALLS, ARRAY[
        ['empty loop', 'g'],
        ['nextval()', \$\$nextval('bench_plain')\$\$],
        ['idgen_segment()', \$\$idgen_segment('bench')\$\$]$1])"
}

# inserts MORE: bigserial, segment, and more.
inserts() {
    say "INSERT … SELECT of $ROWS rows into a table with that DEFAULT primary key"
    db -c "SET client_min_messages = warning" -c "CALL bench_inserts($ROUNDS, $ROWS, ARRAY[
        ['insert bigserial', 'bigserial PRIMARY KEY'],
        ['insert segment', \$\$bigint PRIMARY KEY DEFAULT idgen_segment('bench')\$\$]$1])"
}

everything_else_first() {
    say "one slot"
    daemon_with 1
    db -c "CALL bench_calls($ROUNDS, $CALLS, ARRAY[['idgen_snowflake(), 1 slot', 'idgen_snowflake()']])"

    say "eight slots: calls"
    daemon_with 8
    calls ",
        ['gen_random_uuid()', 'gen_random_uuid()'],
        ['idgen_snowflake(), 8 slots', 'idgen_snowflake()'],
        ['idgen_uuidv7()', 'idgen_uuidv7()']"

    say "two backends at once"
    scaling 'idgen_snowflake()' 'idgen_snowflake()'
    scaling 'nextval()' "nextval('bench_plain')"

    say "with and without counters"
    counting

    inserts ",
        ['insert snowflake', 'bigint PRIMARY KEY DEFAULT idgen_snowflake()'],
        ['insert uuidv7', 'uuid PRIMARY KEY DEFAULT idgen_uuidv7()'],
        ['insert uuidv4', 'uuid PRIMARY KEY DEFAULT gen_random_uuid()']"

    # Postgres inserts many rows at a time only where no default is volatile, but for its own nextval().
    say "COPY of $((ROWS / 4)) rows"
    db -c "SET client_min_messages = warning" -c "CALL bench_copies($ROUNDS, $((ROWS / 4)), '$SCRATCH/copy', ARRAY[
        ['copy bigserial', 'bigserial PRIMARY KEY', ''],
        ['copy snowflake', 'bigint PRIMARY KEY DEFAULT idgen_snowflake()', ''],
        ['copy snowflake, keys from a batch', 'bigint PRIMARY KEY DEFAULT idgen_snowflake()', 'idgen_snowflake_batch'],
        ['copy uuidv7', 'uuid PRIMARY KEY DEFAULT idgen_uuidv7()', ''],
        ['copy uuidv7, keys from a batch', 'uuid PRIMARY KEY DEFAULT idgen_uuidv7()', 'idgen_uuidv7_batch'],
        ['copy segment', \$\$bigint PRIMARY KEY DEFAULT idgen_segment('bench')\$\$, '']])"
    stop_process "$IDGEND_PID" 10 && IDGEND_PID=''
}

main() {
    local fallen_short
    case $SUITE in all | segments) ;; *) die -2 "unknown suite: $SUITE (all or segments)" ;; esac
    require_cargo
    [ "$SUITE" = segments ] || cargo build --locked -p idgen-daemon --bins
    require_installed
    trap cleanup EXIT
    trap 'exit 130' INT TERM
    prepare
    if [ "$SUITE" = all ]; then
        everything_else_first
    else
        say "calls"
        calls ''
        inserts ''
    fi
    segments_under_load
    db -v all="$([ "$SUITE" = all ] && echo 1 || echo 0)" -f regress/bench/report.sql
    fallen_short=$(ask "SELECT count(*) FROM bench_verdict WHERE verdict <> 'holds'")
    cluster_stop "$SCRATCH"
    # The servers did nothing wrong, so no logs.
    rm -rf "$SCRATCH" && SCRATCH=''
    [ "$fallen_short" = 0 ] || die "$fallen_short numbers do not hold on this machine"
}

main
