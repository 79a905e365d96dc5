#!/usr/bin/env bash
# Every test of the project, in one run, with one line at the end: N passed, N failed.
# A suite that cannot run (it does not compile, a server does not start) counts as one failure.
# usage: test.sh [SUITE…]   suites: core loom daemon install installcheck e2e faults outbox soak
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
require_cargo
find_postgres

LOGS=$BUILD_DIR/test
PASSED=0
FAILED=0
BROKEN=()
# These take a quarter of an hour at the most; one that hangs must not hang the caller.
SERVERS_LIMIT_S=2400
# Such a test mostly waits for servers and leases, so more tests than cores is right, but too many make
# deadlines meaningless.
SERVERS_THREADS=${SERVERS_THREADS:-$(($(nproc) + 1))}

# suite NAME COMMAND…: runs it with its output on the screen and in a log, and counts.
suite() {
    local name=$1 log=$LOGS/$1.log status=0 started=$SECONDS passed failed
    shift
    say "test: $name"
    "$@" 2>&1 </dev/null | tee "$log" || status=$?
    read -r passed failed < <(count "$log")
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    PASSED=$((PASSED + passed))
    FAILED=$((FAILED + failed))
    if [ "$failed" -gt 0 ]; then
        BROKEN+=("$name: $failed failed (log: ${log#"$ROOT"/})")
        while IFS= read -r line; do BROKEN+=("    $line"); done < <(failures "$log")
    fi
    note "$name: $passed passed, $failed failed, $((SECONDS - started)) s"
}

# Counts the summaries of libtest, and of pg_regress before and since PostgreSQL 16.
count() {
    awk '
        /^test result: / { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) passed += $i; if ($(i+1) ~ /^failed/) failed += $i } }
        /^(# )? ?All [0-9]+ tests passed/ { match($0, /[0-9]+/); passed += substr($0, RSTART, RLENGTH) }
        /^(# )? ?[0-9]+ of [0-9]+ tests failed/ {
            sub(/^(# )? ?/, ""); failed += $1; passed += $3 - $1 }
        END { print passed + 0, failed + 0 }' "$1"
}

failures() {
    sed -n -E -e '/^test .* FAILED$/p' -e '/^not ok /p' -e '/^test [^ ]+ +\.\.\. FAILED/p' -e '/^error(\[|:)/p' "$1" |
        sort -u | head -n 40
    reasons "$1" | head -n 40
}

# The first panic of each failed test: where the whole log is out of reach, this is all there is.
reasons() {
    awk '
        /^---- .* stdout ----$/ { print "why " $2 ":"; more = 0; told = 0; next }
        /^thread .* panicked at / && !told { more = 4; told = 1 }
        /^(failures|stack backtrace):$/ { more = 0 }
        more > 0 { print "    " substr($0, 1, 400); more-- }' "$1"
}

core_tests() { cargo test --locked --no-fail-fast -p idgen-core; }
# loom explores every interleaving: only bearable with optimisation. One thread: two contend in the kernel and
# take twice as long.
loom_tests() {
    RUSTFLAGS="--cfg loom" cargo test --locked --no-fail-fast --release --target-dir "$CARGO_TARGET_DIR/loom" -p idgen-core --test '*loom*' -- --test-threads 1
}
install_all() { "$ROOT/make/install.sh" extension; }
installcheck() { "$ROOT/make/installcheck.sh"; }

# Everything of the daemon that needs no installed extension: all its test targets but e2e, faults, outbox and soak.
daemon_tests() (
    targets=()
    for name in idgen-daemon/tests/*; do
        name=$(basename "$name" .rs)
        case $name in e2e | faults | outbox | soak) ;; *) targets+=(--test "$name") ;; esac
    done
    with_servers --lib --bins "${targets[@]}"
)
e2e_tests() { with_servers --test e2e; }
faults_tests() (
    "$ROOT/make/etcd.sh" || exit
    export IDGEN_FAULTS_MEASURED=$LOGS/faults-measured.txt
    status=0
    with_servers --test faults || status=$?
    note "measured, by fault:"
    sort "$IDGEN_FAULTS_MEASURED" || true
    exit "$status"
)

# From tables to a real Kafka, and on from there.
outbox_tests() {
    "$ROOT/make/kafka.sh" || return
    with_servers --test outbox
}

# Fixed seeds; `make soak` takes others, and longer.
soak_tests() { with_servers --test soak; }

# with_servers CARGO_TARGET…: tests that start servers.
with_servers() {
    # Built first and apart, so that the limit is for running only.
    cargo test --locked -p idgen-daemon "$@" --no-run || return
    in_scratch "$(tests_base)" timeout --kill-after=20 "$SERVERS_LIMIT_S" \
        cargo test --locked -p idgen-daemon "$@" --no-fail-fast -- --test-threads="$SERVERS_THREADS"
}

main() {
    local suites=("$@") name
    [ ${#suites[@]} -gt 0 ] || suites=(core loom daemon install installcheck e2e faults outbox soak)
    case " ${suites[*]} " in *' install '*) require_install_rights ;; esac
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    for name in "${suites[@]}"; do
        case $name in
            core) suite core core_tests ;;
            loom) suite loom loom_tests ;;
            daemon) suite daemon daemon_tests ;;
            install) suite install install_all ;;
            installcheck) suite installcheck installcheck ;;
            e2e) suite e2e e2e_tests ;;
            faults) suite faults faults_tests ;;
            outbox) suite outbox outbox_tests ;;
            soak) suite soak soak_tests ;;
            *) die -2 "unknown suite: $name" ;;
        esac
    done
    if [ ${#BROKEN[@]} -gt 0 ]; then
        say "what failed"
        printf '%s\n' "${BROKEN[@]}"
    fi
    printf '%s passed, %s failed\n' "$PASSED" "$FAILED"
    [ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
}

main "$@"
