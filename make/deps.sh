#!/usr/bin/env bash
# Debian packages that `make demo` and, with the word `tests`, `make test` need. Instant when nothing is missing; installs
# without starting a service and without creating Debian's `main` cluster: we only ever use our own.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

WITH=${1:-}

# gcc: the C shim. libclang: pgrx reads the server's headers. protobuf: the etcd client's messages.
build_packages=(gcc libc6-dev clang libclang-dev protobuf-compiler libprotobuf-dev)
store_packages=(etcd-server etcd-client)
# The first sets the wall clock of one server in the end-to-end tests, the other one says whether it is right.
clock_packages=(libfaketime chrony)
# Make syncs slow or fail, and cut the network of a process, in the tests of faults.
fault_packages=(strace iproute2)
# librdkafka is built from its sources, with the system's OpenSSL. Kafka's jars come by Maven (make/kafka.sh), the S3 server by pip (make/s3.sh); the pooler stands between the outbox and Postgres in one test.
outbox_packages=(g++ pkg-config libssl-dev openjdk-17-jre-headless maven pgbouncer python3 python3-venv)
server_packages=("postgresql-$DEBIAN_PG_MAJOR" "postgresql-server-dev-$DEBIAN_PG_MAJOR")

# A server named by PG_CONFIG= is the caller's own; nothing of it is installed here.
wanted_packages() {
    printf '%s\n' "${build_packages[@]}" "${store_packages[@]}" "${clock_packages[@]}" "${fault_packages[@]}"
    [ "$WITH" != tests ] || printf '%s\n' "${outbox_packages[@]}"
    if [ -z "${PG_CONFIG:-}" ] || [ "$PG_CONFIG" = "$DEBIAN_PG_CONFIG" ]; then
        printf '%s\n' "${server_packages[@]}"
    fi
}

missing_packages() {
    local package status
    for package in $(wanted_packages); do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$status" = installed ] || printf '%s\n' "$package"
    done
}

# Runs as root in a shell of its own. Both files exist only while apt runs, and one that is
# already there is left alone.
install_quietly='
set -e
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
no_main=/etc/postgresql-common/createcluster.d/pg_idgen.conf
[ -e "$policy" ] && policy=
log=$(mktemp)
cleanup() { rm -f "$no_main" "$log" ${policy:+"$policy"}; }
trap cleanup EXIT
if [ -n "$policy" ]; then printf "#!/bin/sh\nexit 101\n" >"$policy"; chmod 755 "$policy"; fi
mkdir -p "${no_main%/*}"
echo "create_main_cluster = false" >"$no_main"
apt="apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0"
{ $apt update && $apt install -y --no-install-recommends "$@"; } </dev/null >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
'

main() {
    require_cargo
    local missing
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "missing packages (Debian names): ${missing[*]}; without apt-get please install them by hand"
    say "installing Debian packages (a minute or two): ${missing[*]}"
    as_root bash -c "$install_quietly" install_quietly "${missing[@]}" ||
        die "could not install ${missing[*]}; as root: apt-get install ${missing[*]}"
}

if command -v dpkg-query >/dev/null; then
    main
else
    require_cargo
    warn "not a Debian system: the packages that the build needs are not checked (see README)"
fi
