-- INCIDENTS 69, yiwen-ai/xid-ts#13: a wrong shift left 254 distinct ids. Every field of a million ids is counted here: what
-- should vary varies over its whole width, what should not does not.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT count(idgen.fence_lease(c.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision)) >= 0 AS closed FROM idgen.slots s, idgen.server_clock() c WHERE s.state <> 'fenced';
SET work_mem = '256MB';
-- Eight identities whose bits differ in every place.
SELECT count(pg_temp.lease(w)) FROM unnest(ARRAY[85, 170, 341, 682, 511, 513, 768, 1022]) w;
CREATE TEMP TABLE made AS SELECT id, p.* FROM idgen_snowflake_batch(1000000) id, idgen_parse(id) p;
SELECT count(*), count(DISTINCT id), count(DISTINCT worker) BETWEEN 1 AND 8 AS workers, count(DISTINCT sequence) AS sequences, min(sequence), max(sequence),
       count(DISTINCT ts) >= 1000000 / (8 * 4096) AS milliseconds FROM made;
-- Each of the 12 bits of the sequence is set in half of a full run, and all over in nearly so.
SELECT count(*) AS bits_out_of_balance
  FROM (SELECT avg(sequence >> b & 1) AS share FROM (SELECT sequence FROM made ORDER BY id LIMIT 100000) m, generate_series(0, 11) b GROUP BY b) s WHERE share NOT BETWEEN 0.4 AND 0.6;
-- At a low rate ids are not all even, and not all of sequence 0: a new millisecond begins at a small mixed offset.
CREATE TEMP TABLE slow (id bigint);
DO $$ BEGIN FOR i IN 1..200 LOOP INSERT INTO slow VALUES (idgen_snowflake()); PERFORM pg_sleep(0.0012); END LOOP; END $$;
SELECT count(DISTINCT id % 2) AS parities, count(DISTINCT id & 7) AS of_eight, avg(id & 1) BETWEEN 0.2 AND 0.8 AS balanced FROM slow;

-- 200,000 UUIDs: 122 bits but version and variant; the counter's place, the random tail and the fraction of the ms.
CREATE TEMP TABLE uuids AS SELECT u, uuid_send(u) AS b FROM idgen_uuidv7_batch(200000) u;
SELECT (SELECT count(*) FROM (SELECT DISTINCT u FROM uuids) s) AS uuids, (SELECT count(*) > 199900 FROM (SELECT DISTINCT substr(b, 12, 5) FROM uuids) s) AS random_tails,
       (SELECT count(*) > 100 FROM (SELECT DISTINCT substr(b, 7, 2) FROM uuids) s) AS fractions, bool_and(get_byte(b, 6) >> 4 = 7) AS version, bool_and(get_byte(b, 8) >> 6 = 2) AS variant FROM uuids;
-- Every bit of the last 40 is a fair coin: 50,000 throws stay within five standard deviations of a half.
SELECT count(*) AS unfair FROM (SELECT avg(get_bit(b, 88 + n)) AS share FROM (SELECT b FROM uuids LIMIT 50000) u, generate_series(0, 39) n GROUP BY n) s WHERE abs(share - 0.5) > 0.0112;
-- The same for history, where 62 bits are drawn.
CREATE TEMP TABLE history AS SELECT u, uuid_send(u) AS b FROM (SELECT idgen_uuidv7_at('2001-01-01+00') AS u FROM generate_series(1, 50000)) s;
SELECT count(DISTINCT u), count(DISTINCT substr(b, 1, 6)) AS milliseconds FROM history;
SELECT count(*) AS unfair FROM (SELECT avg(get_bit(b, 72 + n)) AS share FROM history, generate_series(0, 55) n GROUP BY n) s WHERE abs(share - 0.5) > 0.0112;
SELECT count(idgen.fence_lease(c.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision)) AS closed FROM idgen.slots s, idgen.server_clock() c WHERE s.state <> 'fenced';
