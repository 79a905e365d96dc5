#!/usr/bin/env bash
# The whole way of an event, `make demo FULL=1`: a throwaway Postgres with the extension, an etcd that keeps the leases, a real
# Kafka, an S3 server, and one idgend between them. Ids are minted; the stock console consumer reads their events from the
# topic, and pyarrow reads them from the archive: as many as are in the tables. Everything that is started here is stopped here.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TAGS=40
IDS_PER_TAG=5000
TOPIC=idgen.audit
BUCKET=audit

find_postgres
PYTHON=$BUILD_DIR/s3/bin/python

build() {
    say "building the extension for PostgreSQL $PG_MAJOR and the daemon (minutes the first time, seconds later)"
    require_cargo
    require_install_rights
    cargo build --locked -p idgen-daemon --bins
    "$ROOT/make/install.sh" extension
    "$ROOT/make/kafka.sh"
    "$ROOT/make/s3.sh"
}

start_servers() {
    say "starting a throwaway PostgreSQL $PG_MAJOR and an etcd"
    start_postgres
    etcd_start "$SCRATCH/etcd"
    note "leases live in $ETCD_ENDPOINT"
}

# A node in KRaft mode, from the jars of make/kafka.sh.
java_tool() {
    local heap=$1 class=$2
    shift 2
    java "$heap" -Xms32m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$KAFKA_LIBS/*" "$class" "$@"
}

start_kafka() {
    say "starting a Kafka broker"
    local dir=$SCRATCH/kafka controller
    KAFKA_LIBS=$(echo "$BUILD_DIR"/kafka-*/libs)
    BROKER=127.0.0.1:$(free_port)
    controller=127.0.0.1:$(free_port)
    mkdir -p "$dir"
    cat >"$dir/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@$controller
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
listeners=PLAINTEXT://$BROKER,CONTROLLER://$controller
advertised.listeners=PLAINTEXT://$BROKER
log.dirs=$dir/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
PROPERTIES
    java_tool -Xmx128m kafka.tools.StorageTool format -t cGdfaWRnZW4tdGVzdHMtMQ -c "$dir/server.properties" >"$dir/format.log" 2>&1 ||
        { cat "$dir/format.log" >&2; die "Kafka's storage could not be formatted"; }
    java_tool -Xmx256m kafka.Kafka "$dir/server.properties" >"$dir/kafka.log" 2>&1 </dev/null &
    KAFKA_PID=$!
    wait_until 60 make_topic || die "Kafka did not answer within 60 s"
    note "topic $TOPIC with 3 partitions on $BROKER"
}

make_topic() {
    kill -0 "$KAFKA_PID" 2>/dev/null || die "Kafka has ended"
    java_tool -Xmx128m org.apache.kafka.tools.TopicCommand --bootstrap-server "$BROKER" --create --if-not-exists --topic "$TOPIC" \
        --partitions 3 --config message.timestamp.type=LogAppendTime >/dev/null 2>&1
}

start_s3() {
    say "starting an S3 server"
    local port
    port=$(free_port)
    S3_ENDPOINT=http://127.0.0.1:$port
    export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo AWS_EC2_METADATA_DISABLED=true
    (cd "$SCRATCH" && exec "$BUILD_DIR/s3/bin/moto_server" -H 127.0.0.1 -p "$port") >"$SCRATCH/s3.log" 2>&1 </dev/null &
    S3_PID=$!
    wait_until 60 make_bucket || die "the S3 server did not answer within 60 s"
    note "bucket $BUCKET on $S3_ENDPOINT, encrypted by a key of KMS"
}

make_bucket() {
    kill -0 "$S3_PID" 2>/dev/null || die "the S3 server has ended"
    "$PYTHON" -c "import boto3; boto3.client('s3', endpoint_url='$S3_ENDPOINT', region_name='us-east-1').create_bucket(Bucket='$BUCKET')" 2>/dev/null
}

start_daemon() {
    say "starting the daemon: leases from etcd, events to Kafka, from there to S3"
    cat >"$SCRATCH/idgend.toml" <<TOML
name = "demo"
[postgres]
url = "host=$SCRATCH port=5432 user=idgend dbname=demo"
[store]
kind = "etcd"
endpoints = ["$ETCD_ENDPOINT"]
prefix = "/pg_idgen/demo"
[workers]
count = 2
[clock]
# A machine that runs a demo need not be synchronised.
check = "off"
[kafka]
brokers = ["$BROKER"]
topic = "$TOPIC"
[archive]
kind = "s3"
bucket = "$BUCKET"
prefix = "demo"
region = "us-east-1"
endpoint = "$S3_ENDPOINT"
force_path_style = true
kms_key_id = "alias/demo"
cut_seconds = 2
[http]
listen = ""
TOML
    start_idgend 60
}

mint() {
    say "minting $((TAGS * IDS_PER_TAG)) ids of $TAGS tags, and as many snowflakes"
    in_demo -v tags="$TAGS" -v ids="$IDS_PER_TAG" >/dev/null <<'SQL'
SELECT idgen_create_segment(format('tag %s', n), step => 100, max_step => 100) FROM generate_series(1, :tags) n;
SELECT count(idgen_segment(format('tag %s', n))) FROM generate_series(1, :tags) n, generate_series(1, :ids);
SELECT count(idgen_snowflake()) FROM generate_series(1, :tags * :ids);
SQL
    wait_until 120 all_published || die "events wait in the table after 120 s"
    note "$(ask 'SELECT count(*) FROM idgen.audit_event') events of segments, all of them sent"
}

all_published() { [ "$(ask 'SELECT count(*) FROM idgen.audit_event WHERE NOT published')" = 0 ]; }

# Events of segments and of leases; each source counts its own.
in_tables() { ask 'SELECT (SELECT count(*) FROM idgen.audit_event) + (SELECT count(*) FROM idgen.lease_event)'; }

in_topic() {
    java_tool -Xmx128m org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$BROKER" --topic "$TOPIC" --from-beginning \
        --timeout-ms 5000 --formatter-property print.key=true 2>/dev/null
}

in_archive() {
    "$PYTHON" - "$S3_ENDPOINT" "$BUCKET/demo/" <<'PYTHON'
import json, sys
import pyarrow.parquet as pq
from pyarrow import fs
endpoint, root = sys.argv[1:]
place = fs.S3FileSystem(endpoint_override=endpoint, region='us-east-1')
commits = [one for one in place.get_file_info(fs.FileSelector(root + 'audit/v1/_commits', recursive=True, allow_not_found=True))
           if one.type == fs.FileType.File]
events, rows, files = set(), 0, 0
for one in commits:
    for file in json.loads(place.open_input_stream(one.path).read())['files']:
        table = pq.ParquetFile(place.open_input_file(root + file['key'])).read(columns=['source', 'event_id'])
        events.update(zip(table['source'].to_pylist(), table['event_id'].to_pylist()))
        rows, files = rows + table.num_rows, files + 1
print(len(events), rows, files, len(commits))
PYTHON
}

same_count() { [ "$(in_archive | cut -d' ' -f1)" = "$(in_tables)" ]; }

prove() {
    local tables topic archive events rows files commits
    wait_until 60 same_count || die "the archive has other events than the tables: $(in_archive), and $(in_tables)"
    tables=$(in_tables)
    say "Kafka's own console consumer"
    in_topic >"$SCRATCH/topic.txt"
    head -n 2 "$SCRATCH/topic.txt" | cut -c1-300 | sed 's/^/    /'
    topic=$(wc -l <"$SCRATCH/topic.txt")
    say "pyarrow"
    archive=$(in_archive)
    read -r events rows files commits <<<"$archive"
    note "$events events in $rows rows of $files Parquet files, tied together by $commits commits"
    say "the same count: $tables in the tables, $topic messages, $events in the archive"
    [ "$tables" = "$topic" ] && [ "$tables" = "$events" ] || die "the counts differ"
    say "idgenctl archive verify"
    "$IDGENCTL" archive verify --config "$SCRATCH/idgend.toml" "$(ask "SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date")"
    say "idgenctl doctor (one broker keeps one copy, which it says)"
    "$IDGENCTL" doctor --config "$SCRATCH/idgend.toml" || [ $? -eq 3 ] || die "the doctor could not ask something"
}

trap cleanup EXIT
trap 'exit 130' INT TERM
build
SCRATCH=$(scratch_dir demo)
start_servers
start_kafka
start_s3
start_daemon
mint
prove
say "the demo is over"
