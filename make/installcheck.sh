#!/usr/bin/env bash
# The SQL regression tests and isolation specs of regress/ against a throwaway cluster that preloads
# the *installed* extension. usage: installcheck.sh [TEST…]   (names of regress/sql, default: all)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
find_postgres

PGXS_TEST=$(dirname "$("$PG_CONFIG" --pgxs)")/../test
OUTPUT=$BUILD_DIR/installcheck
SCRATCH=

cleanup() {
    local status=$?
    [ -n "$SCRATCH" ] || exit "$status"
    cluster_stop "$SCRATCH" immediate || true
    if [ "$status" -ne 0 ]; then
        say "server log (last 60 lines)"
        tail -n 60 "$SCRATCH/server.log" 2>/dev/null || true
    fi
    rm -rf "$SCRATCH"
    exit "$status"
}

# names DIR EXTENSION: the tests of a folder in the order of their file names.
names() {
    local file
    for file in "$1"/*."$2"; do
        [ ! -e "$file" ] || basename "$file" ".$2"
    done
}

# run_tool TOOL NAME…: pg_regress and pg_isolation_regress take the same arguments and differ in the
# database they make. Both run as ourselves; only the server needs the other account.
run_tool() {
    local tool=$1 kind=${1##*/}
    shift
    [ $# -gt 0 ] || return 0
    mkdir -p "$OUTPUT/$kind"
    # Both look for their helpers beside psql, and for inputs under inputdir/{sql,specs}.
    if ! "$tool" --bindir="$PG_BIN" --inputdir="$ROOT/regress" --outputdir="$OUTPUT/$kind" \
        --host="$SCRATCH" --port=5432 --user=postgres --dbname="$kind" "$@"; then
        if [ -s "$OUTPUT/$kind/regression.diffs" ]; then cat "$OUTPUT/$kind/regression.diffs"; fi
        return 1
    fi
}

main() {
    local failed=0 tests=("$@") specs=()
    if [ ${#tests[@]} -eq 0 ]; then
        mapfile -t tests < <(names regress/sql sql)
        mapfile -t specs < <(names regress/specs spec)
    fi
    [ ${#tests[@]} -gt 0 ] || die "no tests in regress/sql"
    require_installed
    rm -rf "$OUTPUT"
    mkdir -p "$OUTPUT"
    trap cleanup EXIT
    TMPDIR=$(tests_base)
    SCRATCH=$(scratch_dir installcheck)
    say "throwaway cluster with PostgreSQL $PG_MAJOR"
    cluster_init "$SCRATCH" "shared_preload_libraries = 'pg_idgen'" 'max_prepared_transactions = 4'
    cluster_start "$SCRATCH" || die "the server did not start"
    run_tool "$PGXS_TEST/regress/pg_regress" "${tests[@]}" || failed=1
    run_tool "$PGXS_TEST/isolation/pg_isolation_regress" "${specs[@]}" || failed=1
    [ "$failed" -eq 0 ] || die "installcheck failed; outputs are in ${OUTPUT#"$ROOT"/}"
}

main "$@"
