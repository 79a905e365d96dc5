#!/usr/bin/env bash
# An S3 for the tests and for `make demo FULL=1`: moto's server, and pyarrow to read the archive with what is not ours, in a
# Python environment of its own in build/s3. Instant when it is there; needs no root.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

HERE=$BUILD_DIR/s3
PACKAGES=('moto[server]==5.2.5' 'pyarrow==26.0.1')

main() {
    [ ! -x "$HERE/bin/moto_server" ] || return 0
    command -v python3 >/dev/null || die "python3 is missing; as root: apt-get install python3 python3-venv"
    local dir
    mkdir -p "$BUILD_DIR"
    dir=$(mktemp -d "$BUILD_DIR/s3.XXXXXX")
    # shellcheck disable=SC2064  # the directory of now
    trap "rm -rf '$dir'" EXIT
    say "fetching an S3 server for tests (${PACKAGES[*]}, into ${HERE#"$ROOT"/})"
    # The programs of an environment know where they are: it is made in its place, and counts when it is whole.
    rm -rf "$HERE"
    { python3 -m venv "$HERE" && "$HERE/bin/pip" install --quiet --disable-pip-version-check "${PACKAGES[@]}"; } \
        </dev/null >"$dir/log" 2>&1 || { rm -rf "$HERE"; cat "$dir/log" >&2; die "could not fetch the S3 server"; }
    "$HERE/bin/python" -c 'import moto.server, pyarrow.parquet' || { rm -rf "$HERE"; die "the S3 server does not run here"; }
}

main
