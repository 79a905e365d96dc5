-- What the rows about segments under load are measured with. Their numbers go into bench_row as they are taken, since each has
-- a base of its own.
CREATE TABLE bench_row (
    nth      int              NOT NULL,
    what     text             NOT NULL,
    measured double precision NOT NULL,
    sense    text             NOT NULL,
    hold     double precision NOT NULL,
    beside   text
);

-- What this database has written so far: transactions, rows of the extension's tables, records of the log.
CREATE VIEW bench_written AS
    SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS transactions,
           (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables WHERE schemaname = 'idgen') AS rows,
           (SELECT wal_records FROM pg_stat_wal) AS records,
           (SELECT count(*) FROM idgen.audit_event WHERE kind = 'segment.grant') AS ranges;

CREATE VIEW bench_errors AS
    SELECT coalesce(sum(value), 0)::bigint AS raised FROM idgen.stats WHERE scope = 'error';

-- A refill that takes its time. The worker sleeps in its transaction, after it has locked and raised the tag's row and
-- before it can commit, as it would for a slow disk or a distant synchronous standby.
CREATE FUNCTION bench_slow_refill() RETURNS trigger
LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$;

CREATE TRIGGER bench_slow_refill BEFORE INSERT ON idgen.audit_event
    FOR EACH ROW WHEN (NEW.tag LIKE 'hot%' AND NEW.kind = 'segment.grant') EXECUTE FUNCTION bench_slow_refill();

-- A thousand tags and a thousand sequences, in an order that has nothing to do with how they were made;
-- and one of each in every row, so that the same loop over the same rows compares them.
CREATE TABLE bench_spread (nth int, tag text, seq regclass, one_tag text, one_seq regclass);

CREATE PROCEDURE bench_make_spread(tags int)
LANGUAGE plpgsql
AS $$
BEGIN
    FOR nth IN 1..tags LOOP
        PERFORM idgen_create_segment('spread' || nth);
        EXECUTE format('CREATE SEQUENCE bench_spread%s', nth);
    END LOOP;
    INSERT INTO bench_spread
    SELECT n, 'spread' || n, format('bench_spread%s', n)::regclass, 'bench', 'bench_plain'
      FROM generate_series(1, tags) n ORDER BY md5(n::text);
END $$;

-- As bench_calls, with an argument that is another one from call to call.
CREATE PROCEDURE bench_spread_calls(rounds int, calls bigint, candidates text[])
LANGUAGE plpgsql
AS $$
DECLARE
    candidate text[];
    nth int;
    tags bigint := (SELECT count(*) FROM bench_spread);
BEGIN
    FOR nth IN 0..rounds LOOP
        FOREACH candidate SLICE 1 IN ARRAY candidates LOOP
            CALL bench_time(candidate[1], nth, calls, format(
                'SELECT count(%s) FROM (SELECT generate_series(1, %s) AS g) t CROSS JOIN bench_spread', candidate[2], calls / tags));
        END LOOP;
        COMMIT;
    END LOOP;
    DELETE FROM bench_sample WHERE round = 0;
END $$;
