#!/usr/bin/env bash
# A real Kafka for the tests of the outbox: its jars, fetched by Maven from wherever the machine's Maven fetches, into
# build/kafka-VERSION. Instant when they are there; needs no root.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The first that can be had. The kit (tests/e2e/kit/kafka.rs) takes what it finds.
VERSIONS=(4.4.0 4.3.0 4.2.0 4.1.1 4.1.0 4.0.0)

# The broker, the tools that its scripts start, and what writes its log to the screen.
pom() {
    printf '%s\n' "<project><modelVersion>4.0.0</modelVersion><groupId>pg-idgen</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging><dependencies>" \
        "<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$1</version></dependency>" \
        "<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$1</version></dependency>" \
        "<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>" \
        "</dependencies></project>"
}

fetch() {
    local dir=$1 version=$2
    pom "$version" >"$dir/pom.xml"
    (cd "$dir" && mvn -B -q dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$dir/libs")
}

main() {
    local dir version
    for version in "${VERSIONS[@]}"; do
        [ ! -d "$BUILD_DIR/kafka-$version/libs" ] || return 0
    done
    command -v java >/dev/null || die "Kafka needs Java 17 or later: make deps, or install it by hand"
    command -v mvn >/dev/null || die "Kafka's jars come by Maven: make deps, or install it by hand"
    mkdir -p "$BUILD_DIR"
    dir=$(mktemp -d "$BUILD_DIR/kafka.XXXXXX")
    # shellcheck disable=SC2064  # the directory of now
    trap "rm -rf '$dir'" EXIT
    for version in "${VERSIONS[@]}"; do
        say "fetching Kafka $version (jars by Maven, into build/kafka-$version)"
        if fetch "$dir" "$version" </dev/null >"$dir/log" 2>&1; then
            chmod -R a+rX "$dir"
            # In one step: a test that looks meanwhile sees all of it or nothing.
            mv "$dir" "$BUILD_DIR/kafka-$version"
            return 0
        fi
        note "$version could not be fetched"
        rm -rf "$dir/libs"
    done
    cat "$dir/log" >&2
    die "could not fetch Kafka"
}

main
