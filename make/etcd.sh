#!/usr/bin/env bash
# A second etcd beside Debian 12's 3.4: the packages of Debian 13 (3.5), unpacked into build/etcd-3.5, installed
# nowhere. The fault tests run on both. Instant when it is there; needs no root.
#
# The source is the machine's own: whatever apt uses for the release that is installed, with the name of the next
# one. apt runs with files of its own, so that the machine's lists and packages stay as they are.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

HERE=$BUILD_DIR/etcd-3.5
NEXT_CODENAME=trixie

# Of the machine's sources those of its own release: not updates, not security, nobody else's.
machine_sources() {
    # shellcheck disable=SC2016  # apt's own variables
    apt-get indextargets 'Created-By: Packages' --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' |
        awk -v release="$1" '$2 == release && $3 == "main" { print $1 }' | sort -u
}

# A machine that is on the next release already has nothing to replace.
codename() { (. /etc/os-release && printf '%s\n' "${VERSION_CODENAME:?}"); }

isolated_apt() {
    local dir=$1 command=$2
    shift 2
    "$command" -q -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State="$dir/state" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" \
        -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"
}

fetch() {
    local dir=$1 uri
    mkdir -p "$dir/state/lists/partial" "$dir/cache/archives/partial" "$dir/packages"
    : >"$dir/status"
    for uri in $(machine_sources "$(codename)"); do
        printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$uri" "$NEXT_CODENAME"
    done >"$dir/sources.list"
    [ -s "$dir/sources.list" ] || die "apt has no source for $(codename) main, so there is none for $NEXT_CODENAME"
    isolated_apt "$dir" apt-get update
    (cd "$dir/packages" && isolated_apt "$dir" apt-get download etcd-server etcd-client)
}

main() {
    [ ! -x "$HERE/usr/bin/etcd" ] || return 0
    command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
        die "etcd 3.5 comes from Debian's packages: on another system put etcd and etcdctl 3.5 into ${HERE#"$ROOT"/}/usr/bin"
    local dir package
    mkdir -p "$BUILD_DIR"
    dir=$(mktemp -d "$BUILD_DIR/etcd.XXXXXX")
    # shellcheck disable=SC2064  # the directory of now
    trap "rm -rf '$dir'" EXIT
    say "fetching etcd 3.5 (packages of Debian $NEXT_CODENAME, unpacked into ${HERE#"$ROOT"/})"
    fetch "$dir" </dev/null >"$dir/log" 2>&1 || { cat "$dir/log" >&2; die "could not fetch etcd 3.5"; }
    for package in "$dir"/packages/*.deb; do dpkg -x "$package" "$dir/tree"; done
    "$dir/tree/usr/bin/etcd" --version >/dev/null || die "the etcd of $NEXT_CODENAME does not run here"
    # In one step: a test that looks meanwhile sees all of it or nothing.
    rm -rf "$HERE"
    mv "$dir/tree" "$HERE"
}

main
