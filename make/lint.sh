#!/usr/bin/env bash
# Formatting, clippy for every crate and target, and small checks of the tree. Changes nothing.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$ROOT/make/docs.sh"
require_cargo
find_postgres

failed=()

# check NAME COMMAND…
check() {
    local name=$1
    shift
    say "$name"
    "$@" || failed+=("$name")
}

clippy() { cargo clippy --locked --all-targets "$@" -- -D warnings; }
clippy_extension() {
    PGRX_PG_CONFIG_PATH=$PG_CONFIG clippy -p pg_idgen --no-default-features --features "$PG_FEATURE"
}
# As the demo builds it. Not its tests: they need the outbox.
clippy_without_outbox() { cargo clippy --locked -p idgen-daemon --no-default-features --lib --bins -- -D warnings; }
# The loom models compile only under their cfg; a target directory of their own keeps the others fresh.
clippy_loom() {
    RUSTFLAGS="--cfg loom" cargo clippy --locked --target-dir "$CARGO_TARGET_DIR/loom" -p idgen-core --all-targets -- -D warnings
}

# A workspace of its own, which nothing else here builds.
fuzz_lock() { cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null; }

tracked() { git ls-files --cached --others --exclude-standard -- "$@"; }

shell_syntax() {
    local file bad=0
    while read -r file; do
        bash -n "$file" || bad=1
    done < <(tracked '*.sh' .ci/run)
    return "$bad"
}

# Tests do not count: neither those at the end of a file nor files of tests.
file_sizes() {
    local file lines bad=0
    while read -r file; do
        case $file in */tests.rs | */tests/*) continue ;; esac
        [ -f "$file" ] || continue
        lines=$(awk '/^#\[cfg\(test\)\]/ { exit } { n++ } END { print n + 0 }' "$file")
        [ "$lines" -le 600 ] || { note "$file has $lines lines without tests, 600 is the limit"; bad=1; }
    done < <(tracked '*.rs' '*.sh' '*.sql')
    return "$bad"
}

# Every object of the SQL surface says what it is for: a file that creates also comments.
sql_comments() {
    local file bad=0
    for file in sql/[0-9]*.sql; do
        grep -q '^COMMENT ON' "$file" || ! grep -q '^CREATE ' "$file" || { note "$file has no COMMENT ON"; bad=1; }
    done
    return "$bad"
}

# What somebody has installed is never edited: an update script expects it as it was.
released_scripts() {
    local file bad=0
    (cd migrations && sha256sum --quiet --check SHA256SUMS) || bad=1
    for file in migrations/pg_idgen--*.sql; do
        grep -q "  $(basename "$file")$" migrations/SHA256SUMS || { note "$file is not in migrations/SHA256SUMS"; bad=1; }
    done
    # Nor with its checksum.
    if { git log --format= -p -- migrations/SHA256SUMS; git diff HEAD -- migrations/SHA256SUMS; } | grep '^-[0-9a-f]'; then
        note "a line of migrations/SHA256SUMS was changed or removed"
        bad=1
    fi
    return "$bad"
}

check "cargo fmt" cargo fmt --all -- --check
check "the lock file of the fuzz targets fits" fuzz_lock
check "clippy: core and daemon" clippy -p idgen-core -p idgen-daemon
check "clippy: the daemon without the outbox" clippy_without_outbox
check "clippy: core under loom" clippy_loom
check "clippy: extension ($PG_FEATURE)" clippy_extension
check "shell scripts parse" shell_syntax
check "files are at most 600 lines" file_sizes
check "SQL objects have comments" sql_comments
check "released scripts are as they were released" released_scripts
check "links in documents lead somewhere" dead_links
check "tests named in documents exist" named_tests
check "code named in docs/lease-proof.md exists" proof_names
check "incidents with a test are in docs/incidents.md" incidents_listed

if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
say "lint is clean"
