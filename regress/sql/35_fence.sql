-- Fencing tokens: the mark of a resource rises with the tokens that it sees, and a lower one is refused.
\getenv dir PG_ABS_SRCDIR
\set refusal :dir '/include/refusal.sql'
\set ECHO none
\i :refusal
\set ECHO all
\set SHOW_CONTEXT never
-- The first token makes the mark; the same again is no change; a newer one raises it.
SELECT idgen.fence('settlement', '0/900') AS raised;
SELECT idgen.fence('settlement', '0/900') AS raised;
SELECT idgen.fence('settlement', '1/10') AS raised;
SELECT idgen.fence('settlement', '1/11') AS raised;
-- The epoch counts first: a store that was restored counts from less.
SELECT idgen.fence('settlement', '2/3') AS raised;
-- What is older is refused.
SELECT pg_temp.refusal('SELECT idgen.fence(''settlement'', ''1/999'')'), pg_temp.refusal('SELECT idgen.fence(''settlement'', ''2/2'')');
DO $$
DECLARE said text;
BEGIN
    PERFORM idgen.fence('settlement', '2/2');
EXCEPTION WHEN SQLSTATE 'IG040' THEN
    GET STACKED DIAGNOSTICS said = PG_EXCEPTION_DETAIL;
    RAISE NOTICE '%', regexp_replace(said, ', at .*', '');
END $$;
SELECT idgen.fence('settlement', '2/3') AS raised;
-- Resources have nothing to do with each other, and are compared as they are.
SELECT idgen.fence('settlement/eu', '1/1') AS raised, idgen.fence('Settlement', '1/1') AS also;
SELECT resource, token_epoch, token_revision, raised_at <= clock_timestamp() AS at, raised_by = session_user AS by FROM idgen.fence_mark ORDER BY 1;
-- A rollback takes the mark back with what was written under it.
BEGIN;
SELECT idgen.fence('settlement', '9/9') AS raised;
ROLLBACK;
SELECT idgen.fence('settlement', '2/4') AS raised;
-- What is no token, and no resource.
SELECT token, pg_temp.refusal(format('SELECT idgen.fence(%L, %L)', 'x', token))
  FROM unnest(ARRAY['', '1', '1/', '/1', '1/0', '-1/1', '1/1 ', '1.5/2', '1/1/1', '1/9999999999999999999', E'1/1\n']) AS token;
SELECT length(resource), pg_temp.refusal(format('SELECT idgen.fence(%L, %L)', resource, '1/1'))
  FROM unnest(ARRAY['', repeat('r', 200), repeat('r', 201), repeat('ä', 101)]) AS resource;
SELECT pg_temp.refusal('SELECT idgen.fence(NULL, ''1/1'')'), pg_temp.refusal('SELECT idgen.fence(''x'', NULL)');
SELECT idgen.fence('x', 'a token that is none, with a hint');
-- Only those who write to it, and nothing but the function.
CREATE ROLE regress_settler;
SET ROLE regress_settler;
SELECT pg_temp.refusal('SELECT idgen.fence(''settlement'', ''3/1'')');
SELECT pg_temp.refusal('UPDATE idgen.fence_mark SET token_epoch = 1');
RESET ROLE;
GRANT EXECUTE ON FUNCTION idgen.fence(text, text) TO regress_settler;
SET ROLE regress_settler;
SELECT idgen.fence('settlement', '3/1') AS raised;
SELECT pg_temp.refusal('SELECT * FROM idgen.fence_mark');
-- A search path of the caller's leads nowhere.
CREATE TEMP TABLE fence_mark (resource text, token_epoch bigint, token_revision bigint);
SET search_path = pg_temp, public;
SELECT idgen.fence('settlement', '3/2') AS raised;
SELECT pg_catalog.count(*) FROM fence_mark;
RESET search_path;
RESET ROLE;
SELECT pg_temp.refusal('SELECT idgen.fence(''settlement'', ''2/9'')');
-- Nowhere where it could not be kept.
BEGIN READ ONLY;
SELECT idgen.fence('settlement', '4/1');
ROLLBACK;
REVOKE EXECUTE ON FUNCTION idgen.fence(text, text) FROM regress_settler;
DELETE FROM idgen.fence_mark;
DROP OWNED BY regress_settler;
DROP ROLE regress_settler;
