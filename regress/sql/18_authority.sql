-- Leased authority: the daemon's functions, ceilings, tokens in events, and every refusal.
\pset null '(null)'
\getenv dir PG_ABS_SRCDIR
\set reloaded :dir '/include/reloaded.sql'
\set refusal :dir '/include/refusal.sql'
\set ECHO none
\i :refusal
\set ECHO all
CREATE FUNCTION pg_temp.install(revision bigint, epoch bigint DEFAULT 1, boot uuid DEFAULT NULL, space uuid DEFAULT NULL, deadline_in bigint DEFAULT 60000, of_stripe integer DEFAULT 0)
RETURNS text LANGUAGE sql AS $$
    SELECT pg_temp.refusal(format('SELECT idgen.install_authority(%L, %L, %s, %s, %s, %s)',
               coalesce(boot, c.boot_id), coalesce(space, h.space_id), of_stripe, epoch, revision, c.boottime_ms + deadline_in))
      FROM idgen.server_clock() c, idgen.health h
$$;
CREATE FUNCTION pg_temp.raise(revision bigint, tag text, floor bigint, ceiling bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.raise_ceiling(h.space_id, 0, 1, revision, tag, floor, ceiling) FROM idgen.health h
$$;
CREATE FUNCTION pg_temp.wanted() RETURNS TABLE (tag text, max_id bigint, ceiling bigint, wanted bigint) LANGUAGE sql AS $$
    SELECT w.tag, w.max_id, w.ceiling, w.wanted FROM idgen.authority_wanted() w, idgen.health h WHERE w.space_id = h.space_id AND coalesce(w.tag, 'leased') = 'leased'
$$;
SELECT authority, authority_state, authority_deadline_in_ms FROM idgen.health;
SELECT idgen_create_segment('leased', step => 100, max_step => 100);
SELECT idgen_segment('leased');
-- Local: nothing is wanted of the daemon, and the events carry no token.
SELECT * FROM pg_temp.wanted();
SELECT token_epoch, token_revision FROM idgen.audit_event WHERE tag = 'leased' AND kind = 'segment.grant' LIMIT 1;

ALTER SYSTEM SET idgen.authority = 'leased';
SELECT pg_reload_conf();
\set setting idgen.authority
\set value leased
\set ECHO none
\i :reloaded
\set ECHO all
SELECT authority, authority_state, authority_deadline_in_ms FROM idgen.health;
-- What is in memory was granted before: it is used up, then nothing more.
SELECT max(n) <= 200 AS used_up FROM (SELECT idgen_segment('leased') AS n FROM generate_series(1, 99)) s;
SET idgen.segment_wait_ms = 300;
SELECT pg_temp.refusal($$SELECT idgen_segment('leased') FROM generate_series(1, 200)$$);
SELECT pg_temp.refusal($$SELECT idgen_create_segment('own'), idgen_segment('own')$$);

-- Refused before anything is installed.
SELECT pg_temp.install(10, boot => gen_random_uuid());
SELECT pg_temp.install(10, space => gen_random_uuid());
SELECT pg_temp.install(10, deadline_in => -1);
SELECT pg_temp.install(-1), pg_temp.install(10, of_stripe => -1);
SELECT pg_temp.raise(10, 'leased', 0, 1000), idgen.fence_authority(space_id, 0) FROM idgen.health;
SELECT authority_state FROM idgen.health;
-- The space is always told; the tag since it was used.
SELECT tag, ceiling, wanted > max_id AS wanted FROM pg_temp.wanted();
SELECT pg_temp.install(10), pg_temp.install(10), pg_temp.install(9);
SELECT authority_state, authority_deadline_in_ms BETWEEN 50000 AND 60000 AS deadline FROM idgen.health;
-- A lease without a ceiling grants nothing.
SELECT pg_temp.refusal($$SELECT idgen_segment('leased')$$);
-- Above the floor, whatever the row says, and up to the ceiling.
SELECT pg_temp.raise(10, 'leased', 5000, 5150), pg_temp.raise(9, 'leased', 0, 9000);
SELECT pg_temp.refusal($$SELECT idgen.raise_ceiling(space_id, 0, 1, 10, 'no such tag', 0, 1) FROM idgen.health$$),
       pg_temp.refusal($$SELECT idgen.raise_ceiling(space_id, 0, 1, 10, 'leased', -1, 1) FROM idgen.health$$);
SELECT min(n), max(n), count(*) FROM (SELECT idgen_segment('leased') AS n FROM generate_series(1, 150)) s;
SELECT pg_temp.refusal($$SELECT idgen_segment('leased')$$);
-- How far the local authority had come depends on whether a range was granted ahead.
SELECT kind, CASE kind WHEN 'segment.grant' THEN lo END AS lo, hi, token_epoch, token_revision, payload->>'cause' AS cause FROM idgen.audit_event
 WHERE tag = 'leased' AND token_revision IS NOT NULL ORDER BY tag_seq;
SELECT max(tag_seq) - min(tag_seq) + 1 = count(*) AS without_gap FROM idgen.audit_event WHERE tag = 'leased';
-- The daemon raises what is wanted; a lower ceiling and another floor change nothing.
SELECT tag, max_id, ceiling, wanted FROM pg_temp.wanted() WHERE tag IS NOT NULL;
SELECT pg_temp.raise(10, 'leased', 5000, 5950), pg_temp.raise(10, 'leased', 9000, 5100);
SELECT idgen_segment('leased');
SELECT count(*) AS wanted_no_more FROM pg_temp.wanted() WHERE tag IS NOT NULL;
-- A newer token begins without ceilings; the older one is void.
SELECT pg_temp.install(11), pg_temp.raise(10, 'leased', 5950, 9000);
SELECT ceiling, wanted > 5350 AS wanted FROM pg_temp.wanted() WHERE tag = 'leased';
SELECT pg_temp.raise(11, 'leased', 5950, 6950);
-- How much of the ranges before is left depends on when the next one was granted ahead.
SELECT count(n) > 0 AS above, max(n) <= 6950 AS below FROM (SELECT idgen_segment('leased') AS n FROM generate_series(1, 400)) s WHERE n > 5950;
-- Fenced: what was granted is used up, then nothing; the same token opens no more.
SELECT idgen.fence_authority(space_id, 0) AS fenced, idgen.fence_authority(space_id, 1) AS other_stripe FROM idgen.health;
SELECT authority_state, authority_deadline_in_ms FROM idgen.health;
SELECT pg_temp.refusal($$SELECT idgen_segment('leased') FROM generate_series(1, 400)$$), pg_temp.install(11);
-- Past the deadline the same.
SELECT pg_temp.install(12, deadline_in => 200), pg_temp.raise(12, 'leased', 6950, 7950);
SELECT pg_sleep(0.25);
SELECT authority_state, authority_deadline_in_ms < 0 AS over FROM idgen.health;
SELECT pg_temp.refusal($$SELECT idgen_segment('leased') FROM generate_series(1, 400)$$);
SELECT idgen.fence_authority(space_id, 0) FROM idgen.health;
-- An epoch counts more than a revision.
SELECT pg_temp.install(5, epoch => 2), pg_temp.install(99, epoch => 1), idgen.fence_authority(space_id, 0) FROM idgen.health;

ALTER SYSTEM RESET idgen.authority;
SELECT pg_reload_conf();
\set value local
\set ECHO none
\i :reloaded
\set ECHO all
SELECT idgen_segment('leased') > 6000 AS local_again, authority, authority_state FROM idgen.health;
