-- Rows of a batch and ids made between them: what a session gets rises all the same.
CREATE FUNCTION pg_temp.install(kind text, identity integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.install_lease(1, c.boot_id, '11111111-2222-4333-8444-555555555555',
               CASE kind WHEN 'shard' THEN 'sharded' ELSE h.worker_format END, kind, identity, 80, 1,
               c.wall_ms, c.wall_ms + 480000, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms)
      FROM idgen.server_clock() c, idgen.health h
$$;
SELECT pg_temp.install('worker', 310), pg_temp.install('shard', 80), pg_temp.install('shard', 96);
CREATE TEMP TABLE seen (n serial, id bigint);
CREATE FUNCTION pg_temp.rising() RETURNS TABLE (ids bigint, distinct_ids bigint, out_of_order bigint) LANGUAGE sql AS $$
    SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id <= before)
      FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM seen) s
$$;
-- A cursor over a batch, with single ids and another batch between its rows.
DO $$
DECLARE
    c CURSOR FOR SELECT idgen_snowflake_batch(2000);
    one bigint;
BEGIN
    OPEN c;
    FOR i IN 1..2000 LOOP
        FETCH c INTO one;
        INSERT INTO seen (id) VALUES (one);
        IF i % 3 = 0 THEN INSERT INTO seen (id) VALUES (idgen_snowflake()); END IF;
        IF i % 100 = 0 THEN INSERT INTO seen (id) SELECT id FROM idgen_snowflake_batch(10) id; END IF;
    END LOOP;
    FETCH c INTO one;
    RAISE NOTICE 'after the last row: %', one;
END $$;
SELECT * FROM pg_temp.rising();
TRUNCATE seen;
-- A trigger that mints while a batch is being inserted.
CREATE TABLE batched (id bigint, by_trigger bigint);
CREATE FUNCTION pg_temp.mint() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO seen (id) VALUES (NEW.id);
    NEW.by_trigger := idgen_snowflake();
    INSERT INTO seen (id) VALUES (NEW.by_trigger);
    RETURN NEW;
END $$;
CREATE TRIGGER mint BEFORE INSERT ON batched FOR EACH ROW EXECUTE FUNCTION pg_temp.mint();
INSERT INTO batched (id) SELECT idgen_snowflake_batch(500);
SELECT * FROM pg_temp.rising();
TRUNCATE seen;
DROP TABLE batched;
-- Two batches in one row, of workers, of one shard, and of two shards (each in an order of its own).
INSERT INTO seen (id) SELECT unnest(ARRAY[a, b]) FROM (SELECT idgen_snowflake_batch(700) AS a, idgen_snowflake_batch(700) AS b) s;
SELECT * FROM pg_temp.rising();
TRUNCATE seen;
INSERT INTO seen (id) SELECT unnest(ARRAY[a, b]) FROM (SELECT idgen_snowflake_batch(700, 80) AS a, idgen_snowflake_batch(700, 80) AS b) s;
SELECT * FROM pg_temp.rising();
TRUNCATE seen;
INSERT INTO seen (id) SELECT a FROM (SELECT idgen_snowflake_batch(700, 80) AS a, idgen_snowflake_batch(700, 96) AS b) s;
SELECT * FROM pg_temp.rising();
TRUNCATE seen;
-- What was dropped is counted, and little of it: the next runs are short.
SELECT value BETWEEN 1 AND 30000 AS some FROM idgen.stats WHERE counter = 'burnt_ids';
-- Undisturbed, nothing is dropped.
SELECT idgen.reset_stats();
SELECT count(*) FROM idgen_snowflake_batch(100000);
SELECT value FROM idgen.stats WHERE counter = 'burnt_ids';
SELECT idgen.fence_lease(boot_id, kind, identity, 80, 1) IS NOT NULL AS fenced
  FROM idgen.server_clock(), idgen.slots WHERE token_epoch = 80;
