#!/usr/bin/env bash
# Prometheus' rules, their unit tests, and Alertmanager's routes of monitoring/, by promtool and amtool. Prints a line per check
# and a summary as libtest does, which make/test.sh counts.
# usage: monitoring.sh [tools]   tools: only fetch the programs
#
# Both are taken out of Debian's packages into build/monitoring-tools and installed nowhere: a package would start a server with
# the machine. Instant when they are there; needs root only where apt has no lists yet.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TOOLS=$BUILD_DIR/monitoring-tools
PROGRAMS=(promtool amtool)
PACKAGES=(prometheus prometheus-alertmanager)
HERE=$ROOT/monitoring
LOG=
PASSED=0
FAILED=0

have_tools() {
    local program
    for program in "${PROGRAMS[@]}"; do command -v "$program" >/dev/null || return 1; done
}

download() (cd "$1" && apt-get -q -o APT::Sandbox::User= download "${PACKAGES[@]}")

fetch_tools() {
    export PATH=$TOOLS/usr/bin:$PATH
    ! have_tools || return 0
    command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
        die "promtool and amtool come from Debian's packages: on another system put them into the PATH"
    local dir package
    mkdir -p "$BUILD_DIR"
    dir=$(mktemp -d "$BUILD_DIR/monitoring.XXXXXX")
    # shellcheck disable=SC2064  # the directory of now
    trap "rm -rf '$dir'" RETURN
    say "fetching promtool and amtool (packages of Debian, unpacked into ${TOOLS#"$ROOT"/})"
    { download "$dir" || { as_root apt-get -q update && download "$dir"; }; } </dev/null >"$dir/log" 2>&1 ||
        { cat "$dir/log" >&2; die "could not fetch ${PACKAGES[*]}"; }
    for package in "$dir"/*.deb; do dpkg -x "$package" "$dir/tree"; done
    rm -rf "$TOOLS"
    mv "$dir/tree" "$TOOLS"
    have_tools || die "the packages have no ${PROGRAMS[*]}"
}

# check NAME COMMAND…
check() {
    local name=$1
    shift
    if "$@" >"$LOG" 2>&1; then
        PASSED=$((PASSED + 1))
        echo "test monitoring::$name ... ok"
    else
        FAILED=$((FAILED + 1))
        echo "test monitoring::$name ... FAILED"
        cat "$LOG"
    fi
}

# A rule that Prometheus takes and complains of is none of ours.
check_rules() { promtool check rules --lint=all --lint-fatal "$@"; }

# Each line of the list: a receiver, and the labels of an alert that has to end up there and nowhere else.
check_routes() {
    local receiver labels bad=0
    [ -s "$HERE/routes.txt" ] || return 1
    while read -r receiver labels; do
        case $receiver in '' | '#'*) continue ;; esac
        # shellcheck disable=SC2086  # labels have no spaces
        amtool config routes test --config.file="$HERE/alertmanager.yml" --verify.receivers="$receiver" $labels ||
            { echo "not routed to $receiver: $labels"; bad=1; }
    done <"$HERE/routes.txt"
    return "$bad"
}

main() {
    local file
    fetch_tools
    [ "${1:-}" != tools ] || return 0
    LOG=$(mktemp)
    trap 'rm -f "$LOG"' EXIT
    for file in "$HERE"/rules/*.yml; do check "rules_$(basename "$file" .yml)" check_rules "$file"; done
    for file in "$HERE"/tests/*.yml; do check "alerts_$(basename "$file" .yml)" promtool test rules "$file"; done
    check alertmanager_config amtool check-config "$HERE/alertmanager.yml"
    check alertmanager_routes check_routes
    if [ "$FAILED" -eq 0 ]; then
        echo "test result: ok. $PASSED passed; 0 failed"
    else
        echo "test result: FAILED. $PASSED passed; $FAILED failed"
        return 1
    fi
}

main "$@"
