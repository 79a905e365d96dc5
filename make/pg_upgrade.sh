#!/usr/bin/env bash
# A real pg_upgrade from the server of OLD_PG_CONFIG to that of PG_CONFIG, both with pg_idgen installed, in throwaway clusters:
# once with the lease store in the cluster itself and segments under a local authority, once linked, under a leased one in a
# real etcd. Says what was checked; the first thing that is not as docs/operations.md says ends it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

IDGEND=$CARGO_TARGET_DIR/debug/idgend
IDGENCTL=$CARGO_TARGET_DIR/debug/idgenctl
SQL=$ROOT/regress/pg_upgrade
SCRATCH='' SIDE='' IDGEND_PID='' ETCD_PID=''
PRELOAD="shared_preload_libraries = 'pg_idgen'"

cleanup() {
    local status=$? side
    trap - EXIT INT TERM
    if [ "$status" -ne 0 ] && [ -n "$SCRATCH" ]; then show_logs; fi
    if [ -n "$IDGEND_PID" ]; then stop_process "$IDGEND_PID" 10 || true; fi
    for side in old new; do
        if [ -n "$SCRATCH" ] && [ -d "$SCRATCH/$side" ]; then on "$side" cluster_stop "$SCRATCH/$side" immediate || true; fi
    done
    if [ -n "$ETCD_PID" ]; then stop_process "$ETCD_PID" 10 || true; fi
    if [ -n "$SCRATCH" ]; then rm -rf "$SCRATCH"; fi
    exit "$status"
}

show_logs() {
    local log
    while read -r log; do
        say "last lines of ${log#"$SCRATCH"/}"
        tail -n 40 "$log"
    done < <(find "$SCRATCH" \( -name '*.log' -o -name '*.out' -o -name '*.txt' \) -size +0 2>/dev/null)
}

# on SIDE COMMAND…: with the programs of that side, and its cluster.
on() {
    local SIDE=$1 PG_CONFIG=$OLD_PG_CONFIG PG_BIN PG_MAJOR PG_FEATURE
    [ "$SIDE" = old ] || PG_CONFIG=$NEW_PG_CONFIG
    shift
    find_postgres
    "$@"
}

psql_on() { on "$1" psql_here "${@:2}"; }
psql_here() { "$PG_BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$SCRATCH/$SIDE" -p 5432 -U postgres -d postgres "$@"; }

# expect WHAT WANTED FOUND
expect() {
    [ "$2" = "$3" ] || die "$1: expected '$2', found '$3'"
    note "$1: $3"
}

# refused WHAT SQLSTATE SQL, by the new server
refused() {
    local code
    code=$(psql_on new -v ON_ERROR_STOP=0 -c "$3" -c '\echo :LAST_ERROR_SQLSTATE' 2>/dev/null | tail -n 1)
    expect "$1" "$2" "$code"
}

# make_cluster SIDE SETTING…: the new one has what pg_upgrade compares as the old one.
make_cluster() {
    local side=$1
    shift
    mkdir "$SCRATCH/$side"
    if is_root; then chown postgres: "$SCRATCH/$side"; fi
    on "$side" cluster_init "$SCRATCH/$side" "$@"
    [ "$side" = old ] || on new without_checksums
}

settings() { printf '%s\n' "${@:2}" >>"$SCRATCH/$1/data/postgresql.conf"; }

# Since PostgreSQL 18 initdb switches them on.
without_checksums() {
    [ "$PG_MAJOR" -lt 18 ] || as_server_user "$PG_BIN/pg_checksums" --disable --no-sync -D "$SCRATCH/new/data" >/dev/null
}

start() { on "$1" cluster_start "$SCRATCH/$1"; }
stop() { on "$1" cluster_stop "$SCRATCH/$1"; }

# upgrade [OPTION…]
upgrade() {
    local old_bin new_bin
    old_bin=$("$OLD_PG_CONFIG" --bindir) new_bin=$("$NEW_PG_CONFIG" --bindir)
    # Its working directory gets its scripts.
    as_server_user bash -c 'cd "$1" && shift && exec "$@"' pg_upgrade "$SCRATCH/new" \
        "$new_bin/pg_upgrade" -b "$old_bin" -B "$new_bin" -d "$SCRATCH/old/data" -D "$SCRATCH/new/data" -U postgres \
        -s "$SCRATCH/new" "$@" >"$SCRATCH/pg_upgrade.log" || die "pg_upgrade failed"
    note "pg_upgrade${*:+ $*} is done"
    # What a server knows of its lease store is beside the tables, and pg_upgrade leaves it behind.
    as_server_user bash -c 'cp -p "$1"/pg_idgen_* "$2"' cp "$SCRATCH/old/data" "$SCRATCH/new/data"
}

# daemon_on SIDE [LINES of TOML]
daemon_on() {
    cat >"$SCRATCH/idgend.toml" <<TOML
[postgres]
url = "host=$SCRATCH/$1 port=5432 user=idgend dbname=postgres"
[http]
listen = ""
${2:-}
TOML
    "$IDGEND" --config "$SCRATCH/idgend.toml" >>"$SCRATCH/idgend.log" 2>&1 </dev/null &
    IDGEND_PID=$! DAEMON_SINCE=$SECONDS
}

stop_daemon() { stop_process "$IDGEND_PID" 10 && IDGEND_PID=''; }
# A server without memory of the cell comes at once into one that was just made (15 s); into any other it has to wait.
cell_is_old() { [ $((SECONDS - DAEMON_SINCE)) -gt 20 ]; }
serving() { [ "$(psql_on "$1" -c 'SELECT state FROM idgen.health')" = serving ]; }
granting() { [ "$(psql_on "$1" -c 'SELECT authority_state FROM idgen.health')" = granting ]; }
sealed() { "$IDGENCTL" epoch show --config "$SCRATCH/idgend.toml" >"$SCRATCH/epoch.out" 2>&1; [ $? = 3 ]; }

remember_old() {
    psql_on old -f "$SQL/state.sql" >"$SCRATCH/old.state"
    [ "$(wc -l <"$SCRATCH/old.state")" -gt 400 ] || die "the state of the old cluster has $(wc -l <"$SCRATCH/old.state") lines only"
}

# compared_with_new: tables and catalogue of the extension are what they were, before anything is drawn.
compared_with_new() {
    psql_on new -f "$SQL/state.sql" >"$SCRATCH/new.state"
    diff "$SCRATCH/old.state" "$SCRATCH/new.state" || die "rows or catalogue of the extension differ"
    note "equal in both: $(wc -l <"$SCRATCH/new.state") lines of rows, functions, columns, rights, comments"
}

# Numbers of before and after are in the same columns, whose primary keys say whether one came twice.
local_authority() {
    say "local authority with an anchor, the lease store in the cluster itself"
    local anchors
    SCRATCH=$(scratch_dir upgrade)
    anchors="idgen.anchor_directory = '$SCRATCH/anchors'"
    as_server_user mkdir "$SCRATCH/anchors"
    make_cluster old "$PRELOAD" "$anchors"
    start old
    psql_on old -f "$SQL/before.sql" >/dev/null
    daemon_on old
    wait_until 60 serving old || die "the old server has no lease"
    psql_on old -c 'INSERT INTO event (n) SELECT generate_series(1, 2000)'
    stop_daemon
    remember_old
    stop old
    make_cluster new "$PRELOAD" "$anchors"
    upgrade
    start new
    expect "version, updated with nothing to do" "$(project_version)" \
        "$(psql_on new -c 'SET client_min_messages = error' -c 'ALTER EXTENSION pg_idgen UPDATE' -c "SELECT extversion FROM pg_extension WHERE extname = 'pg_idgen'")"
    compared_with_new
    expect "authority" "burns first" "$(psql_on new -c 'SELECT authority_state FROM idgen.health')"
    after_upgrade
    store_opens
    stop new
    rm -rf "$SCRATCH" && SCRATCH=''
}

# What is checked in SQL raises an error where it is not so.
after_upgrade() {
    psql_on new -f "$SQL/after.sql" | sed 's/^/    /'
    refused "the sequence that a tag has replaced stands still" 2200H "SELECT nextval('purchase_id_seq')"
    refused "a dropped tag" IG005 "SELECT idgen_segment('gone')"
    refused "a stranger" IG013 "SET ROLE stranger; SELECT idgen_segment('lent')"
    expect "authority" granting "$(psql_on new -c 'SELECT authority_state FROM idgen.health')"
    psql_on new -c "SELECT idgen_release_sequence('purchases')" >/dev/null
    psql_on new -c 'INSERT INTO purchase (n) VALUES (0)'
    note "a tag goes back to its sequence"
}

store_opens() {
    local identity
    daemon_on new
    wait_until 60 sealed || die "the store is not sealed"
    # As it is printed for whoever is to type it.
    identity=$(sed -n 's/.*--identity \([^ ]*\) .*/\1/p' "$SCRATCH/epoch.out")
    "$IDGENCTL" epoch advance --yes --config "$SCRATCH/idgend.toml" --identity "$identity" --reason pg_upgrade >"$SCRATCH/epoch.out" 2>&1 ||
        die "epoch advance"
    wait_until 60 serving new || die "the new server has no lease"
    psql_on new -c 'INSERT INTO event (n) SELECT generate_series(1, 2000)'
    expect "snowflakes of before and after, distinct" 4000 "$(psql_on new -c 'SELECT count(DISTINCT id) FROM event')"
    note "the lease store was sealed, and one idgenctl epoch advance opened it"
    stop_daemon
}

# Files are linked, and no row decides how far ids were granted: the ceiling in the store does.
leased_authority() {
    say "leased authority in etcd, pg_upgrade --link"
    local toml last
    SCRATCH=$(scratch_dir upgrade)
    etcd_start "$SCRATCH/etcd"
    toml="[store]
kind = \"etcd\"
endpoints = [\"$ETCD_ENDPOINT\"]
[authority]
leased = true
ttl_ms = 5000
[clock]
check = \"off\""
    make_cluster old "$PRELOAD" "idgen.authority = leased"
    start old
    psql_on old -c 'CREATE EXTENSION pg_idgen' -c 'CREATE ROLE idgend LOGIN' -c "SELECT idgen.grant_daemon('idgend')" \
        -c "SELECT idgen_create_segment('t')" >/dev/null
    daemon_on old "$toml"
    wait_until 60 granting old || die "the old server has no authority"
    wait_until 60 cell_is_old || die "the cell stays young"
    last=$(psql_on old -c "SELECT max(idgen_segment('t')) FROM generate_series(1, 5000)")
    stop_daemon
    stop old
    # pg_upgrade loads the library; it need not be preloaded for that.
    make_cluster new
    upgrade --link
    settings new "$PRELOAD" "idgen.authority = leased"
    start new
    expect "authority, without a daemon" "no lease" "$(psql_on new -c 'SELECT authority_state FROM idgen.health')"
    daemon_on new "$toml"
    wait_until 60 granting new || die "the new server has no authority"
    note "the daemon has the authority after $((SECONDS - DAEMON_SINCE)) s"
    expect "ids above those of before, and distinct" "t|5000" \
        "$(psql_on new -c "SELECT min(id) > $last, count(DISTINCT id) FROM (SELECT idgen_segment('t') AS id FROM generate_series(1, 5000)) ids")"
    expect "why ids were skipped" "ceiling of the last holder" "$(psql_on new -c "SELECT DISTINCT payload->>'cause' FROM idgen.audit_event WHERE kind = 'segment.burn'")"
    stop_daemon
    stop new
    rm -rf "$SCRATCH" && SCRATCH=''
}

require_cargo
[ -n "${OLD_PG_CONFIG:-}" ] || die -2 "OLD_PG_CONFIG=/path/to/pg_config of the server to upgrade from is missing"
[ -n "${PG_CONFIG:-}" ] || die -2 "PG_CONFIG=/path/to/pg_config of the server to upgrade to is missing"
NEW_PG_CONFIG=$PG_CONFIG
on old require_installed
on new require_installed
cargo build --quiet --locked -p idgen-daemon --bins
say "pg_upgrade from $("$OLD_PG_CONFIG" --version) to $("$NEW_PG_CONFIG" --version)"
trap cleanup EXIT
trap 'exit 130' INT TERM
local_authority
leased_authority
say "everything is as it should be"
