-- Ids of one session rise, through whatever kind of call they come: here thousands of them over cursors, functions,
-- triggers, savepoints, prepared statements, single calls and batches, in an order that a seed decides.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(390), pg_temp.lease(391), idgen_create_segment('order');
CREATE TEMP TABLE drawn (n bigint GENERATED ALWAYS AS IDENTITY, way text, snowflake bigint, uuid uuid, segment bigint);
CREATE TABLE by_default (n bigint GENERATED ALWAYS AS IDENTITY, snowflake bigint DEFAULT idgen_snowflake(), uuid uuid DEFAULT idgen_uuidv7(), segment bigint DEFAULT idgen_segment('order'));
CREATE FUNCTION draw(way text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO drawn (way, snowflake, uuid, segment) VALUES (way, idgen_snowflake(), idgen_uuidv7(), idgen_segment('order')) $$;
CREATE FUNCTION on_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM draw('trigger'); RETURN NEW; END $$;
CREATE TRIGGER on_insert BEFORE INSERT ON by_default FOR EACH ROW EXECUTE FUNCTION on_insert();

CREATE PROCEDURE mix(rounds integer) LANGUAGE plpgsql AS $$
DECLARE
    c refcursor; s bigint; u uuid; g bigint;
BEGIN
    FOR round IN 1..rounds LOOP
        CASE floor(random() * 9)::integer
        WHEN 0 THEN PERFORM draw('function');
        WHEN 1 THEN INSERT INTO by_default DEFAULT VALUES;
        WHEN 2 THEN
            INSERT INTO drawn (way, snowflake) SELECT 'batch', id FROM idgen_snowflake_batch(1 + floor(random() * 5000)::bigint) id;
        WHEN 3 THEN
            INSERT INTO drawn (way, uuid) SELECT 'batch', id FROM idgen_uuidv7_batch(1 + floor(random() * 300)::bigint) id;
        WHEN 4 THEN
            BEGIN
                PERFORM draw('rolled back');
                RAISE EXCEPTION 'undone';
            EXCEPTION WHEN raise_exception THEN PERFORM draw('after a rollback');
            END;
        WHEN 5 THEN
            OPEN c FOR SELECT idgen_snowflake(), idgen_uuidv7(), idgen_segment('order') FROM generate_series(1, 20);
            FOR i IN 1..10 LOOP
                FETCH c INTO s, u, g;
                INSERT INTO drawn (way, snowflake, uuid, segment) VALUES ('cursor', s, u, g);
                PERFORM draw('beside a cursor');
            END LOOP;
            CLOSE c;
        WHEN 6 THEN EXECUTE 'SELECT draw($1)' USING 'dynamic';
        WHEN 7 THEN COMMIT;
        ELSE
            -- A set that is abandoned leaves nothing behind that a later call could meet.
            SELECT id INTO s FROM idgen_snowflake_batch(1000) id LIMIT 1;
            INSERT INTO drawn (way, snowflake) VALUES ('first of a batch', s);
        END CASE;
    END LOOP;
END $$;
SELECT setseed(0.29);
CALL mix(300);
PREPARE one AS INSERT INTO drawn (way, snowflake, uuid, segment) VALUES ('prepared', idgen_snowflake(), idgen_uuidv7(), idgen_segment('order'));
EXECUTE one; EXECUTE one; EXECUTE one; EXECUTE one; EXECUTE one; EXECUTE one; EXECUTE one;
-- A whole new set of identities in the middle, lower ones, and on.
SELECT count(idgen.fence_lease(c.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision)) > 1 AS fenced
  FROM idgen.slots s, idgen.server_clock() c WHERE s.state <> 'fenced';
SELECT pg_temp.lease(388), pg_temp.lease(389);
CALL mix(300);

SELECT count(DISTINCT way) AS ways, count(snowflake) > 1000 AS snowflakes, count(uuid) > 500 AS uuids, count(segment) > 500 AS segments FROM drawn;
-- Each against the greatest before it, not only its neighbour: no rows.
SELECT 'snowflake' AS kind, way FROM (SELECT way, snowflake <= max(snowflake) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS wrong FROM drawn WHERE snowflake IS NOT NULL) s WHERE wrong
UNION ALL
SELECT 'segment', way FROM (SELECT way, segment <= max(segment) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS wrong FROM drawn WHERE segment IS NOT NULL) s WHERE wrong
UNION ALL
SELECT 'uuid', way FROM (SELECT way, uuid <= lag(uuid) OVER (ORDER BY n) AS wrong FROM drawn WHERE uuid IS NOT NULL) s WHERE wrong;
SELECT count(*) AS out_of_order FROM (SELECT snowflake, uuid, segment, lag(snowflake) OVER w AS s, lag(uuid) OVER w AS u, lag(segment) OVER w AS g FROM by_default WINDOW w AS (ORDER BY n)) d
 WHERE snowflake <= s OR uuid <= u OR segment <= g;
-- None twice, over both tables.
SELECT count(id) - count(DISTINCT id) AS twice FROM (SELECT snowflake FROM drawn UNION ALL SELECT snowflake FROM by_default) s (id);
SELECT count(id) - count(DISTINCT id) AS twice FROM (SELECT segment FROM drawn UNION ALL SELECT segment FROM by_default) s (id);
DROP TABLE by_default;
DROP PROCEDURE mix(integer);
DROP FUNCTION draw(text), on_insert();
