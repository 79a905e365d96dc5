-- Every function of the extension is called here once, and Postgres counts the calls: one that is missing from this list is
-- named at the end. What each does is the matter of the other tests; 20_marks lists them, 09_sqlstates their refusals.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(400);
SET track_functions = 'all';
SELECT idgen_create_segment('reached');
SELECT idgen_segment('reached') > 0 AS segment, idgen_snowflake() > 0 AS snowflake, idgen_uuidv7() IS NOT NULL AS uuidv7, idgen_uuidv7_at('2026-01-01') IS NOT NULL AS uuidv7_at,
       (SELECT count(*) FROM idgen_snowflake_batch(2)) AS snowflake_batch, (SELECT count(*) FROM idgen_uuidv7_batch(2)) AS uuidv7_batch;
CREATE TEMP TABLE argument AS SELECT 914921407366844416 AS id, '017f22e2-79b0-7cc3-98c4-dc0c0c07398f'::uuid AS u, '2026-01-01+00'::timestamptz AS at;
SELECT idgen_parse(id) IS NULL AS parse, idgen_parse(u) IS NULL AS parse_uuid, idgen_timestamp(id) IS NULL AS timestamp, idgen_timestamp(u) IS NULL AS timestamp_uuid,
       idgen_snowflake_min(at) IS NULL AS min, idgen_snowflake_max(at) IS NULL AS max, idgen_uuidv7_min(at) IS NULL AS uuid_min, idgen_uuidv7_max(at) IS NULL AS uuid_max,
       idgen_cursor_floor(id, '1 s') IS NULL AS floor, idgen_decode(idgen_encode(id)) = id AS code FROM argument;
SELECT idgen_parse_registered(id, 'classic') IS NULL AS parse, idgen_timestamp_registered(id, 'classic') IS NULL AS timestamp,
       idgen_snowflake_min_registered(at, 'classic') IS NULL AS min, idgen_snowflake_max_registered(at, 'classic') IS NULL AS max,
       idgen.uuid_timestamp(u) IS NULL AS uuid_timestamp, idgen.uuid_version(u) AS uuid_version FROM argument;
SELECT idgen.install_lease(1, c.boot_id, c.cell_id, 'sharded', 'shard', 400, 90, 1, c.wall_ms, c.wall_ms + 10000, c.boottime_ms + 10000, c.wall_ms, c.boottime_ms) AS installed
  FROM idgen.server_clock() c;
SELECT idgen_snowflake(400) > 0 AS shard, (SELECT count(*) FROM idgen_snowflake_batch(2, 400)) AS shard_batch, idgen_uuidv7_shifted('-1 day') IS NOT NULL AS shifted;
SELECT idgen.fence_lease(c.boot_id, 'shard', 400, 90, 1) IS NOT NULL AS fenced FROM idgen.server_clock() c;
SELECT idgen.fence('reached', '1/1') AS fence;
SELECT idgen_register_prefix('reached') AS registered, idgen_public_id('reached') LIKE 'reached\_%' AS public_id;
-- What refuses is not counted, so these are left out at the end; they refuse in 12_public and works in the end-to-end tests (seal.rs).
SELECT idgen_seal(1, 'reached');
SELECT idgen_open('reached_0000000000000000000000', 'reached');
DELETE FROM idgen.prefix;
DELETE FROM idgen.format;
DELETE FROM idgen.lease;
TRUNCATE idgen.lease_event;
BEGIN; INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision) VALUES ('worker', 9, 1, 1, 1); ROLLBACK;
SELECT idgen.seal_key_count();
SELECT count(*) >= 0 AS leaves, idgen.drop_audit_day('2000-01-01', 90) AS kept_by FROM idgen.audit_leaves();
SELECT idgen.index_audit_day() AS indexed;
SELECT idgen.register_format('reached', '2020-01-01+00', 41, 10, 12) AS format, (SELECT count(*) FROM idgen.formats WHERE name = 'reached') AS formats;
-- Silent, because it makes less on later majors and says so.
SET client_min_messages = error;
CREATE SCHEMA reached;
SELECT count(*) >= 0 AS pg18_names FROM idgen.create_pg18_names('reached');
DROP SCHEMA reached CASCADE;
RESET client_min_messages;
SELECT count(*) > 0 AS stats FROM idgen.stats;
SELECT idgen.reset_stats();
SELECT idgen.grant_segment('reached', 'public'), idgen.revoke_segment('reached', 'public');
SELECT idgen_segment_range('reached', 2) IS NOT NULL AS range, idgen_segment_range('reached', 2, 'reached') IS NOT NULL AS range_keyed,
       (SELECT count(*) FROM idgen_segment_batch('reached', 2)) AS batch, (SELECT count(*) FROM idgen_segment_batch('reached', 2, 'reached')) AS batch_keyed;
SELECT idgen_alter_segment('reached', step => 10);
SELECT idgen_seek_segment('reached', 1000000);
SELECT count(*) FROM idgen.health;
SELECT count(*) > 0 AS slots FROM idgen.slots;
SELECT count(*) > 0 AS segments FROM idgen.segments WHERE tag = 'reached';
SELECT idgen_create_segment('reached and left'), idgen_drop_segment('reached and left'), idgen.administer_segments() AS administers;
CREATE TABLE reached_serial (id serial);
SELECT (SELECT count(*) > 0 FROM idgen_adopt_sequence('reached_serial_id_seq', 'reached serial')) AS adopted, (SELECT count(*) > 0 FROM idgen_release_sequence('reached serial')) AS released;
DROP TABLE reached_serial;
SELECT idgen.mix_id(1) IS NOT NULL AS mixed, (SELECT count(*) > 0 FROM idgen.event_digest((now() AT TIME ZONE 'UTC')::date)) AS digest,
       idgen.archive_gate((now() AT TIME ZONE 'UTC')::date) LIKE 'the archive was not checked for %' AS gate;
SELECT count(*) AS overlaps FROM idgen.audit_overlaps('-infinity', 'infinity');
SELECT idgen.pass_over(h.space_id, 'reached', 1) IS NULL AS passed FROM idgen.health h;
SELECT idgen.witness_wanted(0) IS NULL AS nothing_asked, idgen.witnessed(mark) IS NULL AS nothing_told FROM idgen.authority;
SELECT f.is_new, idgen.audit_settle('reached', 'reached') AS settled, idgen.audit_close(f.finding_id, 'reached') AS closed
  FROM idgen.record_finding('reached', 'overlap', NULL, NULL, NULL, NULL, NULL, NULL, 'reached', 'probe', NULL) f;
SELECT count(*) >= 0 AS counted FROM idgen.duplicate_key_counts();
CREATE ROLE idgen_reached;
SELECT idgen.grant_daemon('idgen_reached');
SELECT idgen.grant_admin('idgen_reached');
-- An approval is for the text that is there, by whoever has logged in and is an approver.
INSERT INTO idgen.request (request_id, ask, expires_at) VALUES ('00000000-0000-0000-0000-000000000001', 'a text', 'infinity');
SELECT idgen.grant_approver('idgen_reached');
SELECT pg_temp.refusal('SELECT idgen.approve(''00000000-0000-0000-0000-000000000001'', sha256(''a text''))') AS superuser;
SET SESSION AUTHORIZATION idgen_reached;
SELECT idgen.approve('00000000-0000-0000-0000-000000000001', sha256('a text')), idgen.approve('00000000-0000-0000-0000-000000000001', sha256('a text')) AS again;
RESET SESSION AUTHORIZATION;
SELECT approver, ask_sha256 = sha256('a text') AS of_the_text FROM idgen.approval;
-- Another text needs another approval, by the same people too.
UPDATE idgen.request SET ask = 'another text';
SET SESSION AUTHORIZATION idgen_reached;
SELECT idgen.approve('00000000-0000-0000-0000-000000000001', sha256('another text')) AS once_more;
RESET SESSION AUTHORIZATION;
SELECT approver, ask_sha256 = sha256('another text') AS of_the_other_text FROM idgen.approval;
SELECT idgen.revoke_approver('idgen_reached');
SELECT count(*) FROM idgen.approver;
SELECT count(*) FROM idgen.store_identity();
SELECT idgen.extend_lease(1, c.boot_id, 'classic', 'worker', 400, s.token_epoch, s.token_revision, c.wall_ms, c.boottime_ms, NULL, NULL) AS extended
  FROM idgen.server_clock() c, idgen.slots s WHERE s.kind = 'worker' AND s.identity = 400;
SELECT idgen.fence_lease(c.boot_id, 'worker', 400, s.token_epoch, s.token_revision) IS NOT NULL AS fenced FROM idgen.server_clock() c, idgen.slots s WHERE s.kind = 'worker' AND s.identity = 400;
SELECT idgen.store_anchor(c.boot_id, 'shard', b.body || ' ' || left(encode(sha256(b.body::bytea), 'hex'), 16)) AS stored
  FROM idgen.server_clock() c, LATERAL (SELECT concat_ws(' ', 'anchor2', replace(c.cell_id::text, '-', ''), 'postgres/1/1/1', 0, repeat('0', 31) || 1, 0, 5, '- -', 'classic')) b(body);
SELECT kind FROM idgen.anchors() WHERE kind = 'shard';
SELECT (SELECT count(*) FROM idgen.authority_wanted()) AS wanted, idgen.install_authority(c.boot_id, h.space_id, 0, 7, 1, c.boottime_ms + 1000) AS installed,
       idgen.raise_ceiling(h.space_id, 0, 7, 1, 'reached', 0, 1) AS raised, idgen.fence_authority(h.space_id, 0) AS fenced FROM idgen.server_clock() c, idgen.health h;
SELECT idgen.adopt_authority('reached'), idgen.promote('reached'), idgen.set_safety_burn('reached', 7);
SELECT (SELECT inode FROM idgen.server_home()) > 0 AS home;
SELECT idgen.stripe_place(30000, 1, 2, 10000);
SELECT idgen.join_space(h.space_id, 0, 2, 10000, (SELECT max(max_id) FROM idgen.segment)) FROM idgen.health h;
SELECT idgen.leave_space('reached');
DELETE FROM idgen.segment;
SELECT idgen.claim_server('shard') IS NOT NULL AS claimed;
SELECT idgen.note_clock('good', 'reached', NULL, NULL);
SELECT idgen.note_drained(NULL);
DROP OWNED BY idgen_reached;
DROP ROLE idgen_reached;
-- install_lease is called inside of pg_temp.lease(), segment_changed as the trigger it is.
SELECT pg_temp.lease(401);
SELECT pg_stat_force_next_flush();
SELECT p.oid::regprocedure AS not_reached
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'pg_idgen'
 WHERE p.proname NOT IN ('idgen_seal', 'idgen_open', 'prefix_stays', 'format_stays', 'store_stays', 'segment_stays', 'trail_stays')
   AND NOT EXISTS (SELECT FROM pg_stat_user_functions f WHERE f.funcid = p.oid AND f.calls > 0)
 ORDER BY 1;
RESET track_functions;
