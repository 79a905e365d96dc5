#!/usr/bin/env bash
# Builds and installs. usage: install.sh extension|daemon|build-extension|build-daemon
# DESTDIR is put before every path; PREFIX (default /usr/local) is where the daemon's programs go.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=$(project_version)
[ -n "$VERSION" ] || die "no version found in Cargo.toml"
# The release before this one.
UPDATES_FROM=0.1.0

build_extension() {
    find_postgres
    build_here pg_idgen --release -p pg_idgen --no-default-features --features "$PG_FEATURE"
    mkdir -p "$BUILD_DIR"
    write_install_script >"$BUILD_DIR/pg_idgen--$VERSION.sql"
    write_update_script >"$BUILD_DIR/pg_idgen--$UPDATES_FROM--$VERSION.sql"
    # One source of the version: whatever the control file says, the manifest wins.
    sed "s/^default_version.*/default_version = '$VERSION'/" pg_idgen/pg_idgen.control >"$BUILD_DIR/pg_idgen.control"
}

build_daemon() { build_here idgen-daemon --profile daemon -p idgen-daemon --bins; }

# build_here WHAT CARGO_ARGUMENT…: under sudo there is often no cargo; what the caller has built is used then.
build_here() {
    local what=$1
    shift
    if ! command -v cargo >/dev/null && is_root && [ -n "${SUDO_USER:-}" ]; then
        [ -f "$(built_file "$what")" ] || die "no cargo under sudo and $what is not built: run make as yourself, it asks for root where it must"
        return 0
    fi
    require_cargo
    PGRX_PG_CONFIG_PATH=${PG_CONFIG:-} cargo build --locked "$@"
}

built_file() {
    case $1 in
        pg_idgen) printf '%s\n' "$CARGO_TARGET_DIR/release/libpg_idgen.so" ;;
        *) printf '%s\n' "$CARGO_TARGET_DIR/daemon/idgend" ;;
    esac
}

write_install_script() {
    printf '%s\n' '-- Made by make install from sql/*.sql; edit those.' \
        '\echo Use "CREATE EXTENSION pg_idgen" to load this file. \quit'
    local part
    for part in sql/[0-9]*.sql; do
        printf '\n'
        cat "$part"
    done
}

# What the release before is updated by: first what changes the shape of things that it has, then all parts of the install
# script in a form that takes what is there already. So a new function, table, comment or right needs no second mention.
write_update_script() {
    printf '%s\n' "-- Made by make install from migrations/next/from-$UPDATES_FROM.sql and sql/*.sql; edit those." \
        '\echo Use "ALTER EXTENSION pg_idgen UPDATE" to load this file. \quit'
    printf '\n'
    cat "migrations/next/from-$UPDATES_FROM.sql"
    local part
    for part in sql/[0-9]*.sql; do
        printf '\n'
        sed -E -e 's/^CREATE (FUNCTION|VIEW|TRIGGER) /CREATE OR REPLACE \1 /' \
            -e 's/^CREATE ((UNLOGGED )?TABLE|SCHEMA|SEQUENCE|INDEX|UNIQUE INDEX) /CREATE \1 IF NOT EXISTS /' "$part"
    done
}

install_extension() {
    build_extension
    local lib share released
    lib=${DESTDIR:-}$("$PG_CONFIG" --pkglibdir)
    share=${DESTDIR:-}$("$PG_CONFIG" --sharedir)/extension
    shopt -s nullglob
    released=(migrations/pg_idgen--*.sql)
    put 755 "$lib/pg_idgen.so" "$CARGO_TARGET_DIR/release/libpg_idgen.so"
    put 644 "$share" "$BUILD_DIR/pg_idgen.control" "$BUILD_DIR/pg_idgen--$VERSION.sql" \
        "$BUILD_DIR/pg_idgen--$UPDATES_FROM--$VERSION.sql" "${released[@]}"
    note "pg_idgen $VERSION for PostgreSQL $PG_MAJOR is in $lib and $share"
}

install_daemon() {
    build_daemon
    local bin=${DESTDIR:-}${PREFIX:-/usr/local}/bin
    put 755 "$bin" "$CARGO_TARGET_DIR/daemon/idgend" "$CARGO_TARGET_DIR/daemon/idgenctl"
    note "idgend and idgenctl $VERSION are in $bin"
}

# put MODE DEST FILE…: DEST is a directory, or a file name when it ends in .so. A library is replaced
# by rename: a running server has the old file mapped, and writing into it would crash the server.
put() {
    local mode=$1 dest=$2 dir=$2 run=()
    shift 2
    case $dest in *.so) dir=${dest%/*} ;; esac
    if ! can_write "$dir"; then
        note "$dir needs root: using sudo"
        run=(as_root)
    fi
    "${run[@]}" mkdir -p "$dir"
    case $dest in
        *.so)
            "${run[@]}" install -m "$mode" "$1" "$dest.new"
            "${run[@]}" mv -f "$dest.new" "$dest"
            ;;
        *) "${run[@]}" install -m "$mode" "$@" "$dest" ;;
    esac
}

case ${1:-} in
    extension) install_extension ;;
    daemon) install_daemon ;;
    build-extension) build_extension ;;
    build-daemon) build_daemon ;;
    *) die -2 "usage: install.sh extension|daemon|build-extension|build-daemon" ;;
esac
