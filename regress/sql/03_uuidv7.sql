-- UUIDv7: rises within a session, right version and variant, the clock's time.
CREATE TEMP TABLE u AS SELECT n, idgen_uuidv7() AS id FROM generate_series(1, 100000) n;
SELECT count(*), count(DISTINCT id) FROM u;
SELECT count(*) AS out_of_order FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM u) s WHERE id <= before;
SELECT DISTINCT substr(id::text, 15, 1) AS version, translate(substr(id::text, 20, 1), '89ab', 'vvvv') AS variant FROM u;
SELECT bool_and(abs(extract(epoch FROM clock_timestamp() - idgen_timestamp(id))) < 60) AS now FROM u;
-- Strictly rising over statements and transactions too.
SELECT idgen_uuidv7() AS a \gset
BEGIN; SELECT idgen_uuidv7() AS b \gset
ROLLBACK;
SELECT idgen_uuidv7() AS c \gset
SELECT :'a'::uuid < :'b'::uuid AND :'b'::uuid < :'c'::uuid AS rises;
-- A default, also where every row needs its own.
CREATE TEMP TABLE t (n integer);
INSERT INTO t SELECT generate_series(1, 100);
ALTER TABLE t ADD COLUMN id uuid DEFAULT idgen_uuidv7();
SELECT count(DISTINCT id) FROM t;
