# shellcheck shell=bash
# What the scripts behind the Makefile share: where things are, how they talk, and throwaway servers.
# Sourced, never run. A script that sources this runs with the repository as its current directory.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
BUILD_DIR=$ROOT/build

# --- talking -------------------------------------------------------------------------------------

if [ -t 1 ]; then BOLD=$'\e[1m' RED=$'\e[31m' GREEN=$'\e[32m' DIM=$'\e[2m' PLAIN=$'\e[0m'
else BOLD='' RED='' GREEN='' DIM='' PLAIN=''; fi

say() { printf '%s==> %s%s\n' "$BOLD" "$*" "$PLAIN"; }
note() { printf '    %s\n' "$*"; }
warn() { printf '%swarning:%s %s\n' "$RED" "$PLAIN" "$*" >&2; }
# die [-CODE] MESSAGE
die() {
    local code=1
    case $1 in -[0-9]*) code=${1#-}; shift ;; esac
    printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
    exit "$code"
}

# --- which Postgres ------------------------------------------------------------------------------

DEBIAN_PG_MAJOR=15
DEBIAN_PG_CONFIG=/usr/lib/postgresql/$DEBIAN_PG_MAJOR/bin/pg_config

# Sets PG_CONFIG, PG_BIN, PG_MAJOR and PG_FEATURE (the cargo feature of the extension).
find_postgres() {
    if [ -z "${PG_CONFIG:-}" ]; then
        if [ -x "$DEBIAN_PG_CONFIG" ]; then PG_CONFIG=$DEBIAN_PG_CONFIG; else PG_CONFIG=pg_config; fi
    fi
    PG_CONFIG=$(command -v "$PG_CONFIG") ||
        die -2 "no pg_config found: install postgresql-server-dev-$DEBIAN_PG_MAJOR or name one with PG_CONFIG=/path/to/pg_config"
    export PG_CONFIG
    local version
    version=$("$PG_CONFIG" --version) || die -2 "$PG_CONFIG --version failed"
    PG_MAJOR=$(sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p' <<<"$version")
    case $PG_MAJOR in
        15 | 16 | 17 | 18) PG_FEATURE=pg$PG_MAJOR ;;
        *) die -2 "unsupported server '$version' ($PG_CONFIG): pg_idgen builds for PostgreSQL 15, 16, 17 and 18" ;;
    esac
    PG_BIN=$("$PG_CONFIG" --bindir)
}

# The one source of the version is the workspace manifest.
project_version() {
    sed -n '/^\[workspace\.package\]/,/^\[/ s/^version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml"
}

require_cargo() {
    command -v cargo >/dev/null ||
        die "cargo is not in the PATH: install Rust with rustup (https://rustup.rs), then run make again"
}

# --- who we are ----------------------------------------------------------------------------------

is_root() { [ "$(id -u)" -eq 0 ]; }

# Runs a command as root: directly, or through sudo.
as_root() {
    if is_root; then "$@"; return; fi
    command -v sudo >/dev/null || die "this needs root: run it as root, or install sudo ($*)"
    if [ -t 0 ]; then sudo -- "$@"; else sudo -n -- "$@"; fi
}

# can_write DIR: the nearest existing parent decides for a directory that is not there yet.
can_write() {
    local dir=$1
    is_root && return 0
    until [ -e "$dir" ]; do dir=$(dirname "$dir"); done
    [ -w "$dir" ]
}

# Said before minutes of building, not after.
require_install_rights() {
    can_write "$("$PG_CONFIG" --pkglibdir)" || command -v sudo >/dev/null ||
        die "installing into $("$PG_CONFIG" --pkglibdir) needs root: run this as root, install sudo, or name a server of your own with PG_CONFIG="
}

# Postgres refuses to run as root, so root borrows the account of the Debian package. The working
# directory is left because that account may not be able to enter it.
as_server_user() (
    cd /
    if is_root; then
        id postgres >/dev/null 2>&1 || die "Postgres refuses to run as root and there is no user 'postgres'"
        exec runuser -u postgres -- "$@"
    fi
    exec "$@"
)

require_installed() {
    [ -f "$("$PG_CONFIG" --sharedir)/extension/pg_idgen.control" ] ||
        die "pg_idgen is not installed in this server: make install PG_CONFIG=$PG_CONFIG"
}

# --- throwaway servers ---------------------------------------------------------------------------

# scratch_dir NAME: prints a new private directory that the server's account owns. Sockets live in it
# and a socket's path is limited to 107 bytes, hence the fallback to /tmp.
scratch_dir() {
    local base=${TMPDIR:-/tmp} dir
    [ ${#base} -le 60 ] || base=/tmp
    dir=$(mktemp -d "$base/pg_idgen-$1.XXXXXX")
    if is_root; then chown postgres: "$dir"; fi
    printf '%s\n' "$dir"
}

# tests_base: prints where tests keep their servers' files. In memory where there is room: a disk that others keep busy
# stands still for seconds, and then what is tested is the disk. What a crash of the machine does is tested nowhere, and
# the faults of disks that are tested are injected.
tests_base() {
    local memory=/dev/shm
    if [ -z "${TMPDIR:-}" ] && has_room "$memory" && runs_programs "$memory"; then
        printf '%s\n' "$memory"
    else
        printf '%s\n' "${TMPDIR:-/tmp}"
    fi
}

# 6 GiB: several times what all tests that run at once have ever used.
has_room() {
    local kib
    kib=$(df --output=avail "$1" 2>/dev/null | tail -n 1) && [ -w "$1" ] && [ "${kib:-0}" -ge $((6 << 20)) ]
}

# Containers mount it noexec.
runs_programs() {
    local probe status=0
    probe=$(mktemp "$1/pg_idgen-probe.XXXXXX") || return
    printf '#!/bin/sh\n' >"$probe"
    chmod 700 "$probe"
    "$probe" 2>/dev/null || status=1
    rm -f "$probe"
    return "$status"
}

# cluster_init DIR [SETTING…]: a cluster in DIR/data, to be reached through the socket in DIR only.
cluster_init() {
    local dir=$1
    shift
    as_server_user "$PG_BIN/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --no-locale --no-sync \
        >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log" >&2; die "initdb failed"; }
    printf '%s\n' "listen_addresses = ''" "port = 5432" "unix_socket_directories = '$dir'" \
        "logging_collector = off" "$@" >>"$dir/data/postgresql.conf"
}

cluster_start() {
    as_server_user "$PG_BIN/pg_ctl" -D "$1/data" -l "$1/server.log" -s -w -t 60 start
}

# cluster_stop DIR [MODE]: quietly does nothing when the server is down.
cluster_stop() {
    [ -f "$1/data/postmaster.pid" ] || return 0
    as_server_user "$PG_BIN/pg_ctl" -D "$1/data" -s -w -t 30 -m "${2:-fast}" stop
}

# in_scratch BASE COMMAND…: runs it with a temp dir below BASE that is empty of processes and files afterwards, even
# when the command is cut off.
in_scratch() (
    scratch=$(mktemp -d "$1/pg_idgen-test.XXXXXX")
    shift
    chmod 755 "$scratch"
    trap 'stop_leftovers "$scratch"; rm -rf "$scratch"' EXIT
    TMPDIR=$scratch "$@"
)

# stop_leftovers DIR: ends the processes that run *inside* DIR, a directory that we made: whatever
# they are, we started them.
stop_leftovers() {
    local dir=$1 signal cwd pid
    for signal in TERM KILL; do
        for cwd in /proc/[0-9]*/cwd; do
            case $(readlink "$cwd" 2>/dev/null) in
                "$dir" | "$dir"/*) pid=${cwd#/proc/}; kill -"$signal" "${pid%/cwd}" 2>/dev/null || true ;;
            esac
        done
        wait_until 5 nothing_runs_in "$dir" && return 0
    done
}

nothing_runs_in() {
    local cwd
    for cwd in /proc/[0-9]*/cwd; do
        case $(readlink "$cwd" 2>/dev/null) in "$1" | "$1"/*) return 1 ;; esac
    done
}

# wait_until SECONDS COMMAND…: polls until the command succeeds.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

# A loopback port that nobody listens on, below the range the kernel hands out by itself.
free_port() {
    local port try
    for try in {1..50}; do
        port=$((20000 + RANDOM % 10000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then printf '%s\n' "$port"; return; fi
    done
    die "no free loopback port after $try tries"
}

# etcd_start DIR: one real etcd with its data in DIR; sets ETCD_PID and ETCD_ENDPOINT.
etcd_start() {
    local dir=$1 peer
    command -v etcd >/dev/null || die "etcd is not installed (Debian: etcd-server)"
    mkdir -p "$dir"
    ETCD_ENDPOINT=http://127.0.0.1:$(free_port)
    peer=http://127.0.0.1:$(free_port)
    (cd "$dir" && exec etcd --name throwaway --data-dir "$dir/data" \
        --listen-client-urls "$ETCD_ENDPOINT" --advertise-client-urls "$ETCD_ENDPOINT" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "throwaway=$peer") >"$dir/etcd.log" 2>&1 </dev/null &
    ETCD_PID=$!
    wait_until 20 etcd_healthy || { cat "$dir/etcd.log" >&2; die "etcd did not become healthy within 20 s"; }
}

etcd_healthy() { ETCDCTL_API=3 etcdctl --endpoints "$ETCD_ENDPOINT" endpoint health >/dev/null 2>&1; }

# stop_process PID SECONDS: SIGTERM, then SIGKILL; the exit status of the process is returned.
stop_process() {
    local pid=$1 status=0
    kill -TERM "$pid" 2>/dev/null || true
    wait_until "$2" process_gone "$pid" || kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || status=$?
    return "$status"
}

# A child that has ended stays a zombie until it is waited for.
process_gone() {
    local state
    state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 0
    [ -z "$state" ] || [ "$state" = Z ]
}
