-- INCIDENTS 71, apache/dolphinscheduler#5317, oceanbase/powercontext#91, TabularisDB/tabularis#210: JavaScript rounds ids above
-- 2^53, and updates hit no row, or another one. Rounding is what double precision does too, so it can be shown here; as text
-- and as idgen_encode() an id survives, and sorts.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(710);
CREATE TABLE account (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), hits integer NOT NULL DEFAULT 0);
INSERT INTO account SELECT FROM generate_series(1, 1000);
-- What JSON.parse makes of the number: most ids become another, and some of those are other rows.
SELECT min(id) > 9007199254740992 AS above_2_to_53, count(*) FILTER (WHERE (id::float8)::numeric <> id) > 500 AS most_are_rounded FROM account;
UPDATE account a SET hits = a.hits + 1 FROM account b WHERE a.id = ((to_json(b.id)::text)::float8)::numeric::bigint;
SELECT count(*) > 500 AS not_hit_by_a_rounding_client, sum(hits) < 1000 AS lost FROM account WHERE hits <> 1;
-- As text: every row by its own id, once.
UPDATE account SET hits = 0;
UPDATE account a SET hits = a.hits + 1 FROM account b WHERE a.id = (to_json(b.id::text) #>> '{}')::bigint;
SELECT count(*) AS not_hit FROM account WHERE hits <> 1;
UPDATE account a SET hits = 0 FROM account b WHERE a.id = idgen_decode(json_build_object('id', idgen_encode(b.id)) ->> 'id');
SELECT count(*) AS not_hit FROM account WHERE hits <> 0;
-- The text form is plain ASCII that no JSON or URL has to escape, of one length, in the order of the ids under any rule of bytes.
SELECT count(*) AS wrong FROM account WHERE idgen_encode(id) !~ '^[0-9A-HJKMNP-TV-Z]{13}$' OR to_json(idgen_encode(id))::text <> '"' || idgen_encode(id) || '"';
SELECT array_agg(id ORDER BY id) = array_agg(id ORDER BY idgen_encode(id) COLLATE "C") AS same_order FROM account;
-- An index on it serves the API's look-up.
CREATE UNIQUE INDEX account_code ON account (idgen_encode(id));
SET enable_seqscan = off; SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT hits FROM account WHERE idgen_encode(id) = '0SCKM5GNR0M00';
-- Segments stay below 2^53 for as long as anybody counts, and can be held there.
SELECT idgen_create_segment('js safe', start_id => 9007199254740990, limit_id => 9007199254740991, step => 1, max_step => 1);
SELECT idgen_segment('js safe'), idgen_segment('js safe');
SELECT pg_temp.refusal($$SELECT idgen_segment('js safe')$$);
DROP TABLE account;
