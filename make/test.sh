#!/usr/bin/env bash
# Every test of the project, in one run, with one line at the end: N passed, N failed.
# A suite that cannot run (it does not compile, a server does not start) counts as one failure.
# usage: test.sh [SUITE…]   suites: core loom daemon install installcheck e2e faults outbox audit soak monitoring
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
require_cargo
find_postgres

LOGS=$BUILD_DIR/test
PASSED=0
FAILED=0
BROKEN=()
ALONE=()
# These take a quarter of an hour at the most; one that hangs must not hang the caller.
SERVERS_LIMIT_S=2400
# Such a test mostly waits for servers and leases, so more tests than cores is right, but too many make
# deadlines meaningless.
SERVERS_THREADS=${SERVERS_THREADS:-$(($(nproc) + 1))}

# On a machine that stands still for seconds one test in a thousand fails at a bound of time, as long as others run beside
# it. Up to so many of a suite are run once more, alone; what has then passed is named at the end all the same.
AGAIN_MAX=3
# A bound of time, as the kit tells of it (wait.rs, pace.rs) and the tests of many times do. Nothing else is run again.
OF_TIME='waited .* in vain for: |at most and .* for the machine|, .* are allowed$'
# Not even then: what was waited for is an id or an event that came twice or was lost. Once is once too often.
NEVER_AGAIN='twice|duplicate|overlap|missing|invented|lost'

# suite NAME COMMAND…: runs it with its output on the screen and in a log, and counts.
suite() {
    local name=$1 log=$LOGS/$1.log status=0 started=$SECONDS passed failed
    shift
    say "test: $name"
    "$@" 2>&1 </dev/null | tee "$log" || status=$?
    read -r passed failed < <(count "$log")
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    if may_run_again "$log"; then again "$name" "$@"; fi
    PASSED=$((PASSED + passed))
    FAILED=$((FAILED + failed))
    if [ "$failed" -gt 0 ]; then
        BROKEN+=("$name: $failed failed (log: ${log#"$ROOT"/})")
        while IFS= read -r line; do BROKEN+=("    $line"); done < <(failures "$log")
    fi
    note "$name: $passed passed, $failed failed, $((SECONDS - started)) s"
}

failed_tests() { sed -n -E 's/^test ([^ ]+) \.\.\. FAILED$/\1/p' "$1" | sort -u; }

# What failed tests say, without their names and places.
messages() { reasons "$1" | sed -E '/^why /d; /^ *thread .* panicked at /d'; }

# may_run_again LOG: tests with servers, all of which have run to their end, and few have failed, each for a bound of time. A
# program that was killed or that aborted has no summary: which of its tests would have failed nobody knows.
may_run_again() {
    local failed
    grep -q '^with servers: ' "$1" || return 1
    [ "$(grep -c '^ *Running ' "$1")" -eq "$(grep -c '^test result: ' "$1")" ] || return 1
    read -r _ failed < <(count "$1")
    [ "$failed" -gt 0 ] && [ "$failed" -le "$AGAIN_MAX" ] || return 1
    [ "$(failed_tests "$1" | wc -l)" -eq "$failed" ] || return 1
    [ "$(messages "$1" | grep -c -E "$OF_TIME")" -eq "$failed" ] || return 1
    [ "$(messages "$1" | grep -c -i -E "$NEVER_AGAIN")" -eq 0 ]
}

# Sets what `suite` counts: passed, failed, log.
again() {
    local name=$1 first=$log more status=0 tests
    shift
    mapfile -t tests < <(failed_tests "$first")
    log=$LOGS/$name-again.log
    say "test: $name: again, alone: ${tests[*]}"
    ONLY=${tests[*]} "$@" 2>&1 </dev/null | tee "$log" || status=$?
    read -r more _ < <(count "$log")
    # One that has not run this time has not passed.
    failed=$((${#tests[@]} - more))
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    passed=$((passed + more))
    ALONE+=("$name: failed beside others, then run alone (log: ${first#"$ROOT"/})")
    while IFS= read -r line; do ALONE+=("    $line"); done < <(reasons "$first" | head -n 20)
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
# Loom has one processor for minutes: the other one builds meanwhile what starts servers. What does not compile is told by the
# suite that it belongs to.
build_ahead() { cargo test --locked -p idgen-daemon --no-run; }
install_all() { "$ROOT/make/install.sh" extension; }
installcheck() { "$ROOT/make/installcheck.sh"; }

# Everything of the daemon that needs no installed extension: all its test targets but e2e, faults, outbox, audit and soak.
daemon_tests() (
    targets=()
    for name in idgen-daemon/tests/*; do
        name=$(basename "$name" .rs)
        case $name in e2e | faults | outbox | audit | soak) ;; *) targets+=(--test "$name") ;; esac
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
    "$ROOT/make/kafka.sh" && "$ROOT/make/s3.sh" || return
    with_servers --test outbox
}

# On a primary and a standby, and with what is read in Kafka and S3.
audit_tests() {
    "$ROOT/make/kafka.sh" && "$ROOT/make/s3.sh" || return
    with_servers --test audit
}

# Rules, routes and their unit tests; needs no server.
monitoring_tests() { "$ROOT/make/monitoring.sh"; }

# Fixed seeds; `make soak` takes others, and longer.
soak_tests() { with_servers --test soak; }

# with_servers CARGO_TARGET…: tests that start servers; with ONLY="NAME …" those alone, one after the other.
with_servers() {
    local which=(--test-threads="$SERVERS_THREADS")
    # shellcheck disable=SC2206  # names of tests have no spaces
    [ -z "${ONLY:-}" ] || which=(--test-threads=1 --exact $ONLY)
    echo "with servers: $*"
    # Built first and apart, so that the limit is for running only.
    cargo test --locked -p idgen-daemon "$@" --no-run || return
    in_scratch "$(tests_base)" timeout --kill-after=20 "$SERVERS_LIMIT_S" \
        cargo test --locked -p idgen-daemon "$@" --no-fail-fast -- "${which[@]}"
}

main() {
    local suites=("$@") name
    [ ${#suites[@]} -gt 0 ] || suites=(core loom daemon monitoring install installcheck e2e faults outbox audit soak)
    case " ${suites[*]} " in *' install '*) require_install_rights ;; esac
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    for name in "${suites[@]}"; do
        case $name in
            core) suite core core_tests ;;
            loom)
                case " ${suites[*]} " in *' daemon '*) build_ahead >"$LOGS/build-ahead.log" 2>&1 </dev/null & ;; esac
                suite loom loom_tests
                wait
                ;;
            daemon) suite daemon daemon_tests ;;
            monitoring) suite monitoring monitoring_tests ;;
            install) suite install install_all ;;
            installcheck) suite installcheck installcheck ;;
            e2e) suite e2e e2e_tests ;;
            faults) suite faults faults_tests ;;
            outbox) suite outbox outbox_tests ;;
            audit) suite audit audit_tests ;;
            soak) suite soak soak_tests ;;
            *) die -2 "unknown suite: $name" ;;
        esac
    done
    if [ ${#ALONE[@]} -gt 0 ]; then
        say "what was run again"
        printf '%s\n' "${ALONE[@]}"
    fi
    if [ ${#BROKEN[@]} -gt 0 ]; then
        say "what failed"
        printf '%s\n' "${BROKEN[@]}"
    fi
    printf '%s passed, %s failed\n' "$PASSED" "$FAILED"
    [ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
}

main "$@"
