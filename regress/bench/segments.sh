# shellcheck shell=bash
# The rows about segments under load; sourced by bench.sh, which has made the cluster. Each run of clients is judged by
# whoever may know of an error: pgbench, which ends a client at its first one, and idgen.stats, where the server counts them.

LOAD_SECONDS=${BENCH_SECONDS:-10}
CLIENTS=32
TAGS=1000
REFILL_MS=50

# row NTH WHAT MEASURED SENSE HOLD [BESIDE]
row() {
    db -v nth="$1" -v what="$2" -v measured="$3" -v sense="$4" -v hold="$5" -v beside="${6:-}" <<<"
        INSERT INTO bench_row VALUES (:nth, :'what', :measured, :'sense', :hold, :'beside')"
}

ask() { db -A -t -c "$1"; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f", a / b }'; }

# clients NAME COUNT SQL: for LOAD_SECONDS. Sets RATE (statements per second), P99_MS (of a statement) and ERRORS.
clients() {
    local name=$1 count=$2 before failed=0 statements
    printf '%s\n' "$3" >"$SCRATCH/$name.sql"
    before=$(ask 'SELECT raised FROM bench_errors')
    (cd "$SCRATCH" && "$PG_BIN/pgbench" -n -M prepared -c "$count" -j 2 -T "$LOAD_SECONDS" -l --log-prefix="$name" -f "$name.sql" \
        -h "$SCRATCH" -p 5432 -U postgres postgres) >"$SCRATCH/$name.out" 2>"$SCRATCH/$name.err" || failed=1
    grep -E 'ERROR|aborted' "$SCRATCH/$name.err" || true
    ERRORS=$(($(ask 'SELECT raised FROM bench_errors') - before + failed))
    RATE=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$SCRATCH/$name.out")
    # The third word of each line of the log: how long it took, in µs.
    cut -d' ' -f3 "$SCRATCH/$name".[0-9]* | sort -n >"$SCRATCH/$name.times"
    statements=$(wc -l <"$SCRATCH/$name.times")
    P99_MS=$(awk -v nth="$((statements - statements / 100))" 'NR == nth { printf "%.1f", $1 / 1000; exit }' "$SCRATCH/$name.times")
    rm -f "$SCRATCH/$name".[0-9]* "$SCRATCH/$name.times"
}

no_refill_worker() { [ "$(ask "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_idgen refill worker'")" = 0 ]; }

# The worker says what it has written when it goes, after a second without work.
written() {
    wait_until 30 no_refill_worker || die "a refill worker does not go"
    ask 'SELECT * FROM bench_written'
}

# What CALLS ids of one tag write, in words of the database, and what they write for nextval().
segment_writes() {
    local before after sequence ranges t0 r0 w0 n0 t1 r1 w1 n1
    ask "SELECT idgen_create_segment('written')" >/dev/null
    ask "SELECT count(idgen_segment('written')) FROM generate_series(1, 1000)" >/dev/null
    before=$(written)
    ask "SELECT count(idgen_segment('written')) FROM generate_series(1, $CALLS)" >/dev/null
    after=$(written)
    ask "SELECT count(nextval('bench_plain')) FROM generate_series(1, $CALLS)" >/dev/null
    IFS='|' read -r t0 r0 w0 n0 <<<"$before"
    IFS='|' read -r t1 r1 w1 n1 <<<"$after"
    sequence=$(($(ask 'SELECT records FROM bench_written') - w1))
    ranges=$((n1 - n0))
    row 100 'transactions that write / range granted' "$(ratio $((t1 - t0)) "$ranges")" '<=' 1.1 \
        "$CALLS ids, $ranges ranges, $((t1 - t0)) transactions"
    row 101 'rows written / range granted (the tag, its event)' "$(ratio $((r1 - r0)) "$ranges")" '<=' 2.02 ''
    row 102 'ids / transaction that writes' "$(ratio "$CALLS" $((t1 - t0)))" '>=' 1000 'nextval() 32 per record of the log'
    row 103 'records of the log / those of nextval()' "$(ratio $((w1 - w0)) "$sequence")" '<=' 0.1 "$((w1 - w0)) and $sequence"
}

# Many clients on one tag whose refills take 50 ms: once with the default step, which a prefetch hides, and once with ranges so
# small that everybody always waits for the next one.
segment_hot() {
    local base_rate base_p99 ranges
    clients nextval $CLIENTS "SELECT nextval('bench_plain')"
    base_rate=$RATE base_p99=$P99_MS

    ask "SELECT idgen_create_segment('hot')" >/dev/null
    clients hot $CLIENTS "SELECT idgen_segment('hot')"
    row 110 "$CLIENTS clients, one tag, refills of $REFILL_MS ms: errors" "$ERRORS" '<=' 0 \
        "$(printf '%.0f ids/s, p99 %s ms' "$RATE" "$P99_MS")"
    row 111 'the same: ids/s / those of nextval()' "$(ratio "$RATE" "$base_rate")" '>=' 0.9 \
        "$(printf 'nextval() %.0f ids/s, p99 %s ms' "$base_rate" "$base_p99")"

    ask "SELECT idgen_create_segment('hot, ranges of 100', step => 100, max_step => 100)" >/dev/null
    clients starved $CLIENTS "SELECT idgen_segment('hot, ranges of 100')"
    ranges=$(ask "SELECT count(*) FROM idgen.audit_event WHERE tag = 'hot, ranges of 100' AND kind = 'segment.grant'")
    row 112 "$CLIENTS clients, ranges of 100 ids: errors" "$ERRORS" '<=' 0 \
        "$(printf '%.0f ids/s, p99 %s ms, %s ranges' "$RATE" "$P99_MS" "$ranges")"
    # Nobody queues: who comes late to a range may find it used up by those who were quick, and waits for another.
    row 113 'the same: p99 of a call / idgen.segment_wait_ms' "$(ratio "$P99_MS" 2000)" '<=' 0.25 ''
    row 114 'the same: time / ranges, in refills' "$(ratio "$((LOAD_SECONDS * 1000))" $((ranges * REFILL_MS)))" '>=' 0.95 \
        'below 1 no refill was slow'
}

segment_spread() {
    db -c "CALL bench_make_spread($TAGS)"
    clients spread 4 "\\set n random(1, $TAGS)
SELECT idgen_segment('spread' || :n::int)"
    row 120 "4 clients, $TAGS tags at random: errors" "$ERRORS" '<=' 0 \
        "$(printf '%.0f ids/s, p99 %s ms' "$RATE" "$P99_MS")"
    db -c "CALL bench_spread_calls($ROUNDS, $CALLS, ARRAY[
        ['spread: empty loop', 'tag'],
        ['spread: idgen_segment() of $TAGS tags', 'idgen_segment(tag)'],
        ['spread: idgen_segment() of one tag', 'idgen_segment(one_tag)'],
        ['spread: nextval() of $TAGS sequences', 'nextval(seq)'],
        ['spread: nextval() of one sequence', 'nextval(one_seq)']])"
}

segments_under_load() {
    db -f regress/bench/segments.sql
    say "database writes of $CALLS ids"
    segment_writes
    say "$CLIENTS clients for $LOAD_SECONDS s, refills of $REFILL_MS ms (a trigger sleeps in the worker's transaction)"
    segment_hot
    say "$TAGS tags at random"
    segment_spread
}
