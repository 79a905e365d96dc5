#!/usr/bin/env bash
# Runs every fuzz target of fuzz/ for FUZZ_SECONDS (default 60) each and prints a table at the end.
# usage: fuzz.sh [TARGET…]   What was found is in fuzz/artifacts; a crash file is run again by
#   cargo +nightly fuzz run -s none TARGET FILE
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
require_cargo

SECONDS_EACH=${FUZZ_SECONDS:-60}
LOGS=$BUILD_DIR/fuzz
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/fuzz

require_cargo_fuzz() {
    cargo fuzz --version >/dev/null 2>&1 || die "cargo-fuzz is not installed: cargo install cargo-fuzz"
    cargo +nightly --version >/dev/null 2>&1 || die "no nightly Rust: rustup toolchain install nightly"
}

targets() { sed -n 's/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | grep -v '^idgen-fuzz$'; }

# No sanitizer: core and daemon forbid unsafe code, and without one there are several times as many executions.
fuzz() { (cd fuzz && cargo +nightly fuzz "$1" --fuzz-dir . -s none "${@:2}"); }

# run_target NAME: prints its line of the table; fails when something was found.
run_target() {
    local name=$1 log=$LOGS/$1.log status=0 dirs=("corpus/$1")
    mkdir -p "fuzz/corpus/$name"
    [ ! -d "fuzz/seeds/$name" ] || dirs+=("seeds/$name")
    fuzz run "$name" "${dirs[@]}" -- -max_total_time="$SECONDS_EACH" -max_len=4096 -print_final_stats=1 \
        >"$log" 2>&1 || status=$?
    awk -v name="$name" -v verdict="$([ "$status" -eq 0 ] && echo clean || echo FOUND)" '
        /^stat::number_of_executed_units:/ { runs = $2 }
        /^stat::average_exec_per_sec:/ { rate = $2 }
        / cov: [0-9]+/ { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i+1) }
        END { printf "%-12s %-6s %12d runs %9d/s %7d edges\n", name, verdict, runs, rate, cov }' "$log"
    return "$status"
}

main() {
    local names=("$@") name line failed=() table=()
    [ ${#names[@]} -gt 0 ] || mapfile -t names < <(targets)
    require_cargo_fuzz
    mkdir -p "$LOGS"
    say "building ${#names[@]} fuzz targets"
    if [ $# -eq 0 ]; then fuzz build; else for name in "${names[@]}"; do fuzz build "$name"; done; fi
    for name in "${names[@]}"; do
        say "fuzzing $name for $SECONDS_EACH s"
        line=$(run_target "$name") || { failed+=("$name"); grep -E "panicked|Test unit written" -A2 "$LOGS/$name.log" || true; }
        note "$line"
        table+=("$line")
    done
    say "summary"
    printf '    %s\n' "${table[@]}"
    [ ${#failed[@]} -eq 0 ] || die "found something in: ${failed[*]} (logs in ${LOGS#"$ROOT"/}, inputs in fuzz/artifacts)"
}

main "$@"
