#!/usr/bin/env bash
# Real servers mint for minutes while a seed breaks things; then everything that was recorded is judged.
# usage: soak.sh   with SUITE=leases STORE=etcd|postgres ETCD=3.4|3.5 SEED=N MINUTES=N in the environment, or CHECK=DIR
#                  to judge the record of an earlier run again; or with SUITE=outage SECONDS_AWAY=N: etcd is away for that long
#                  under the TTLs of production; or with SUITE=segments SEED=N ROUNDS=N: segments are drawn from while everything
#                  crashes at every moment of a refill; or with SUITE=outbox SEED=N ROUNDS=N: events are sent and archived while
#                  daemons, the broker and Postgres are killed, a standby is promoted and S3 fails
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
require_cargo
find_postgres
require_installed

SUITE=${SUITE:-leases}
case $SUITE in leases | outage | segments | outbox) ;; *) die -2 "unknown suite: $SUITE (leases, outage, segments or outbox)" ;; esac
case $STORE in etcd | postgres) ;; *) die -2 "unknown store: $STORE (etcd or postgres)" ;; esac
ETCD=${ETCD:-3.4}
case $ETCD in 3.4 | 3.5) ;; *) die -2 "unknown release of etcd: $ETCD (3.4, the installed one, or 3.5)" ;; esac
SEED=${SEED:-$((RANDOM << 15 | RANDOM))}
MINUTES=${MINUTES:-10}
[[ $SEED =~ ^[0-9]+$ ]] || die -2 "SEED=$SEED is not a number"
[[ $MINUTES =~ ^[0-9]+(\.[0-9]+)?$ ]] || die -2 "MINUTES=$MINUTES is not a number"
[ -z "${CHECK:-}" ] || [ -d "$CHECK" ] || die -2 "CHECK=$CHECK is not a directory"

# What is soaked keeps its files on the disk, as servers do.
base=${TMPDIR:-/tmp}

if [ "$SUITE" = outage ]; then
    seconds=${SECONDS_AWAY:-300}
    [[ $seconds =~ ^[0-9]+$ ]] || die -2 "SECONDS_AWAY=$seconds is not a number"
    say "soak: SUITE=outage SECONDS_AWAY=$seconds"
    "$ROOT/make/etcd.sh"
    cargo test --quiet --locked -p idgen-daemon --test faults --no-run
    in_scratch "$base" env IDGEN_OUTAGE_SECONDS="$seconds" \
        cargo test --quiet --locked -p idgen-daemon --test faults -- --nocapture outage::
    exit
fi

if [ "$SUITE" = segments ]; then
    rounds=${ROUNDS:-200}
    [[ $rounds =~ ^[0-9]+$ ]] || die -2 "ROUNDS=$rounds is not a number"
    say "soak: SUITE=segments SEED=$SEED ROUNDS=$rounds"
    cargo test --quiet --locked -p idgen-daemon --test soak --no-run
    in_scratch "$base" env SOAK_SEED="$SEED" SOAK_ROUNDS="$rounds" \
        cargo test --quiet --locked -p idgen-daemon --test soak -- --nocapture --exact tests::segments_through_crashes
    exit
fi

if [ "$SUITE" = outbox ]; then
    rounds=${ROUNDS:-200}
    [[ $rounds =~ ^[0-9]+$ ]] || die -2 "ROUNDS=$rounds is not a number"
    say "soak: SUITE=outbox SEED=$SEED ROUNDS=$rounds"
    "$ROOT/make/kafka.sh"
    "$ROOT/make/s3.sh"
    cargo test --quiet --locked -p idgen-daemon --test outbox --no-run
    in_scratch "$base" env SOAK_SEED="$SEED" SOAK_ROUNDS="$rounds" \
        cargo test --quiet --locked -p idgen-daemon --test outbox -- --nocapture --exact soak::events_come_through_whatever_is_killed
    exit
fi

release=''
if [ "$STORE" = etcd ]; then release=" ETCD=$ETCD"; fi
say "soak: SUITE=$SUITE STORE=$STORE$release SEED=$SEED MINUTES=$MINUTES"
if [ "$release" = ' ETCD=3.5' ]; then "$ROOT/make/etcd.sh"; fi
cargo test --quiet --locked -p idgen-daemon --test soak --no-run
in_scratch "$base" env SOAK_SEED="$SEED" SOAK_MINUTES="$MINUTES" SOAK_ETCD="$ETCD" SOAK_CHECK="${CHECK:+$(realpath "$CHECK")}" \
    cargo test --quiet --locked -p idgen-daemon --test soak -- --nocapture --exact "tests::leases_in_$STORE"
