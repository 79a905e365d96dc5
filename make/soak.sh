#!/usr/bin/env bash
# Real servers mint for minutes while a seed breaks things; then everything that was recorded is judged.
# usage: soak.sh   with SUITE=leases STORE=etcd|postgres SEED=N MINUTES=N in the environment, or CHECK=DIR to judge
#                  the record of an earlier run again
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
require_cargo
find_postgres
require_installed

SUITE=${SUITE:-leases}
[ "$SUITE" = leases ] || die -2 "unknown suite: $SUITE (there is: leases)"
case $STORE in etcd | postgres) ;; *) die -2 "unknown store: $STORE (etcd or postgres)" ;; esac
SEED=${SEED:-$((RANDOM << 15 | RANDOM))}
MINUTES=${MINUTES:-10}
[[ $SEED =~ ^[0-9]+$ ]] || die -2 "SEED=$SEED is not a number"
[[ $MINUTES =~ ^[0-9]+(\.[0-9]+)?$ ]] || die -2 "MINUTES=$MINUTES is not a number"
[ -z "${CHECK:-}" ] || [ -d "$CHECK" ] || die -2 "CHECK=$CHECK is not a directory"

say "soak: SUITE=$SUITE STORE=$STORE SEED=$SEED MINUTES=$MINUTES"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/pg_idgen-soak.XXXXXX")
chmod 755 "$scratch"
trap 'stop_leftovers "$scratch"; rm -rf "$scratch"' EXIT
cargo test --quiet --locked -p idgen-daemon --test soak --no-run
TMPDIR=$scratch SOAK_SEED=$SEED SOAK_MINUTES=$MINUTES SOAK_CHECK=${CHECK:+$(realpath "$CHECK")} \
    cargo test --quiet --locked -p idgen-daemon --test soak -- --nocapture --exact "tests::leases_in_$STORE"
