-- What people look at, and who may do what.

CREATE FUNCTION idgen.server_state(
    OUT version text, OUT contract_version integer, OUT preloaded boolean, OUT in_recovery boolean,
    OUT boot_id uuid, OUT cell_id uuid, OUT worker_format text, OUT next_format text, OUT next_format_from_ms bigint,
    OUT daemon_seen_ms_ago bigint, OUT open_slots integer, OUT open_shards integer, OUT deadline_in_ms bigint,
    OUT state text, OUT clock_state text, OUT clock_reason text, OUT clock_offset_us bigint, OUT clock_error_us bigint,
    OUT drained text)
RETURNS record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_server_state';
COMMENT ON FUNCTION idgen.server_state() IS 'The server''s part of idgen.health.';

CREATE FUNCTION idgen.authority_state(
    OUT authority text, OUT authority_state text, OUT authority_deadline_in_ms bigint)
RETURNS record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_authority_state';
COMMENT ON FUNCTION idgen.authority_state() IS 'This database''s authority over ranges of segment tags, for idgen.health.';

CREATE VIEW idgen.health AS
SELECT s.state, s.version, s.contract_version, s.preloaded, s.in_recovery, s.open_slots, s.open_shards,
       s.deadline_in_ms, s.daemon_seen_ms_ago, s.boot_id, s.cell_id, s.worker_format, s.next_format,
       pg_catalog.to_timestamp(s.next_format_from_ms OPERATOR(pg_catalog./) 1000.0) AS next_format_from,
       s.clock_state, s.clock_reason, s.clock_offset_us, s.clock_error_us, p.space_id, p.source_id,
       a.authority, a.authority_state, a.authority_deadline_in_ms, p.stripe, p.stripes, p.stripe_size, s.drained
  FROM idgen.server_state() s CROSS JOIN idgen.space p CROSS JOIN idgen.authority_state() a;
COMMENT ON VIEW idgen.health IS 'One row: is this server able to mint? state: serving, drained, no lease, not preloaded, in recovery.';
COMMENT ON COLUMN idgen.health.state IS 'serving; drained or no lease, when nothing is open; not preloaded or in recovery.';
COMMENT ON COLUMN idgen.health.version IS 'Version of the library that is loaded.';
COMMENT ON COLUMN idgen.health.contract_version IS 'What a daemon must speak.';
COMMENT ON COLUMN idgen.health.preloaded IS 'shared_preload_libraries has pg_idgen.';
COMMENT ON COLUMN idgen.health.in_recovery IS 'A standby: no snowflakes, no segments.';
COMMENT ON COLUMN idgen.health.open_slots IS 'Worker identities that can mint now.';
COMMENT ON COLUMN idgen.health.open_shards IS 'Logical shards that can mint now.';
COMMENT ON COLUMN idgen.health.deadline_in_ms IS 'In how many ms the last of them stops unless the daemon renews; NULL: none is open.';
COMMENT ON COLUMN idgen.health.daemon_seen_ms_ago IS 'For how many ms the daemon has been silent; NULL: never seen.';
COMMENT ON COLUMN idgen.health.boot_id IS 'Name of this shared memory; new after every (crash-)restart.';
COMMENT ON COLUMN idgen.health.cell_id IS 'Where snowflakes are unique; NULL before the first lease.';
COMMENT ON COLUMN idgen.health.worker_format IS 'Format of idgen_snowflake() in this cell, now; a region stands behind a slash.';
COMMENT ON COLUMN idgen.health.next_format IS 'The format it will be switched to; NULL: none is planned.';
COMMENT ON COLUMN idgen.health.next_format_from IS 'Ids of this time and later are in next_format.';
COMMENT ON COLUMN idgen.health.clock_state IS 'What the daemon knows of this server''s wall clock: good, warn, unsynchronised, stepped, apart from peers, listening or unchecked; NULL: no daemon has said anything for 30 s.';
COMMENT ON COLUMN idgen.health.clock_reason IS 'The same in words.';
COMMENT ON COLUMN idgen.health.clock_offset_us IS 'How far the clock is ahead (positive) of its time source, or else of the other servers, in microseconds; NULL: nobody tells.';
COMMENT ON COLUMN idgen.health.clock_error_us IS 'How far it is off at the most, in microseconds; NULL: nobody tells.';
COMMENT ON COLUMN idgen.health.space_id IS 'Where segment ids are unique, per tag.';
COMMENT ON COLUMN idgen.health.source_id IS 'This database as a source of audit events.';
COMMENT ON COLUMN idgen.health.authority IS 'Who may grant ranges of segment tags here: local or leased (idgen.authority).';
COMMENT ON COLUMN idgen.health.authority_state IS 'granting; local: burns first (after a promotion or recovery, with the next grant), waits for witness (what topic and archive know of the time before, from idgend) or copy (refuses until idgen.adopt_authority()); leased: no lease, expired (its deadline has passed) or fenced; in recovery or not preloaded.';
COMMENT ON COLUMN idgen.health.stripe IS 'Which of the space''s masters this database is, from 0.';
COMMENT ON COLUMN idgen.health.stripes IS 'How many masters the space is cut for; 1: this database alone.';
COMMENT ON COLUMN idgen.health.stripe_size IS 'Ids per stripe; NULL: one master.';
COMMENT ON COLUMN idgen.health.drained IS 'Who has drained this server (idgenctl server drain), when and why; NULL: nobody, as far as its daemon knows.';
COMMENT ON COLUMN idgen.health.authority_deadline_in_ms IS 'In how many ms the lease of this database''s space ends unless the daemon renews it; NULL: authority is local, or no lease is open.';

-- Operators by their full names where the arguments are converted: one in the target schema that takes them as they
-- are would be meant otherwise, and run as whoever looks.
CREATE VIEW idgen.slots AS
SELECT s.kind, s.identity, s.state, s.generation, s.token_epoch, s.token_revision,
       pg_catalog.to_timestamp(s.floor_ms OPERATOR(pg_catalog./) 1000.0) AS floor,
       pg_catalog.to_timestamp(s.last_ms OPERATOR(pg_catalog./) 1000.0) AS last,
       pg_catalog.to_timestamp(s.ceiling_ms OPERATOR(pg_catalog./) 1000.0) AS ceiling,
       s.floor_ms, s.last_ms, s.ceiling_ms, s.deadline_in_ms,
       s.ceiling_ms - (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint AS ceiling_lead_ms,
       s.ids
  FROM idgen.slot_states() s;
COMMENT ON VIEW idgen.slots IS 'The leased identities of this server since its shared memory was made.';
COMMENT ON COLUMN idgen.slots.kind IS 'worker or shard.';
COMMENT ON COLUMN idgen.slots.identity IS 'The number that ids carry.';
COMMENT ON COLUMN idgen.slots.state IS 'open, expired (deadline passed) or fenced.';
COMMENT ON COLUMN idgen.slots.generation IS 'Generation of the mint word, modulo 2048.';
COMMENT ON COLUMN idgen.slots.token_epoch IS 'Fencing token: epoch,';
COMMENT ON COLUMN idgen.slots.token_revision IS '... and revision of the lease store.';
COMMENT ON COLUMN idgen.slots.floor IS 'Ids carry times from here ...';
COMMENT ON COLUMN idgen.slots.last IS '... the last one carried this ...';
COMMENT ON COLUMN idgen.slots.ceiling IS '... and none will lie above this; NULL when fenced.';
COMMENT ON COLUMN idgen.slots.floor_ms IS 'floor in Unix ms.';
COMMENT ON COLUMN idgen.slots.last_ms IS 'last in Unix ms.';
COMMENT ON COLUMN idgen.slots.ceiling_ms IS 'ceiling in Unix ms; NULL when fenced.';
COMMENT ON COLUMN idgen.slots.deadline_in_ms IS 'ms until it stops minting unless renewed; negative: it has; NULL when fenced.';
COMMENT ON COLUMN idgen.slots.ceiling_lead_ms IS 'ceiling minus the wall clock of this server, in ms; NULL when fenced.';
COMMENT ON COLUMN idgen.slots.ids IS 'Ids minted since idgen.reset_stats() or the start of the server; late by the transactions that are still running.';

CREATE VIEW idgen.segments AS
SELECT s.tag, coalesce(r.rolname, s.owner) AS owner, s.start_id, s.max_id, s.limit_id, s.step, s.max_step,
       b.step AS step_in_use, b.remaining, b.ids_per_s, b.seconds_left, b.refills, b.refill_failures,
       b.refill_ms, b.refill_ms_max, b.refill_ms_mean, b.granted_ms_ago, b.wanted, b.blocker, b.blocker_pid,
       (SELECT x.gid FROM pg_catalog.pg_prepared_xacts x WHERE x.transaction::text::bigint = b.blocker_xid) AS blocker_gid,
       b.burned::jsonb AS burned, s.fetch_limit, b.fetches_per_minute, b.warning, s.created_at, s.granted_at, s.segment_id,
       idgen.stripe_place(s.limit_id, p.stripe, p.stripes, coalesce(p.stripe_size, 1))
           - idgen.stripe_place(s.max_id, p.stripe, p.stripes, coalesce(p.stripe_size, 1)) + coalesce(b.remaining, 0) AS ids_left,
       CASE WHEN s.stripe_count = p.stripes AND (s.stripe_size = p.stripe_size OR p.stripes = 1) THEN p.stripe END AS stripe,
       s.stripe_count AS stripes, s.stripe_size
  FROM idgen.segment s CROSS JOIN idgen.space p
  LEFT JOIN pg_catalog.pg_roles r
    ON r.oid = CASE WHEN s.role_space = p.space_id THEN s.owner_oid
                    ELSE (SELECT n.oid FROM pg_catalog.pg_roles n WHERE n.rolname = s.owner) END
  LEFT JOIN idgen.segment_buffers() b ON b.segment_id = s.segment_id AND b.space_id = p.space_id
 WHERE s.dropped_at IS NULL
   AND (pg_catalog.pg_has_role(r.oid, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));
COMMENT ON VIEW idgen.segments IS 'The tags that the caller owns (all for members of pg_monitor), with what shared memory has of them; NULL there: not used since the server started.';
COMMENT ON COLUMN idgen.segments.tag IS 'Name that idgen_segment() is called with.';
COMMENT ON COLUMN idgen.segments.owner IS 'Role that it belongs to.';
COMMENT ON COLUMN idgen.segments.start_id IS 'First id.';
COMMENT ON COLUMN idgen.segments.max_id IS 'Highest id granted.';
COMMENT ON COLUMN idgen.segments.limit_id IS 'Highest id that may be granted.';
COMMENT ON COLUMN idgen.segments.step IS 'Least ids per grant.';
COMMENT ON COLUMN idgen.segments.max_step IS 'Most ids per grant.';
COMMENT ON COLUMN idgen.segments.step_in_use IS 'Ids of the last grant.';
COMMENT ON COLUMN idgen.segments.remaining IS 'Ids in memory: they need no database write.';
COMMENT ON COLUMN idgen.segments.ids_per_s IS 'Ids drawn from memory per second, a weighted mean of about the last minute, measured every second; bulk requests are not in it.';
COMMENT ON COLUMN idgen.segments.seconds_left IS 'For how many seconds remaining lasts at ids_per_s; NULL: nothing is drawn.';
COMMENT ON COLUMN idgen.segments.refills IS 'Ranges taken in since the server started.';
COMMENT ON COLUMN idgen.segments.refill_failures IS 'Refills that brought nothing since the server started.';
COMMENT ON COLUMN idgen.segments.refill_ms IS 'Refill latency: how long the last refill took from its begin to the ids in memory, its commit included, in ms; NULL: none yet.';
COMMENT ON COLUMN idgen.segments.refill_ms_max IS 'The longest refill since the server started, in ms.';
COMMENT ON COLUMN idgen.segments.refill_ms_mean IS 'The mean of all refills since the server started, in ms.';
COMMENT ON COLUMN idgen.segments.granted_ms_ago IS 'Age of the last range, ms.';
COMMENT ON COLUMN idgen.segments.wanted IS 'A refill has been asked for and has not begun.';
COMMENT ON COLUMN idgen.segments.blocker IS 'What the last refill was held up by: row lock, prepared transaction, table lock, no worker, no lease, ceiling, copy, safety burn, fetch limit, not cut (IG035), witness (IG033), exhausted, dropped, or error (see the server log); NULL: nothing.';
COMMENT ON COLUMN idgen.segments.blocker_pid IS 'Process that holds the lock, where it is a lock; NULL: none, or not found.';
COMMENT ON COLUMN idgen.segments.blocker_gid IS 'Name of the prepared transaction that holds the lock (pg_prepared_xacts); NULL: none, or it has ended.';
COMMENT ON COLUMN idgen.segments.burned IS 'Ids that nobody gets, by cause, since the server started. restart, eviction: in memory when it stopped, or when its place was given to another tag (at most so many, counted with the next grant); seek: in memory when the tag was moved; safety: passed over because they may have been granted elsewhere; refill: granted and not published; bulk: of a request whose caller was gone.';
COMMENT ON COLUMN idgen.segments.fetch_limit IS 'Most grants per minute; NULL: no limit.';
COMMENT ON COLUMN idgen.segments.fetches_per_minute IS 'Grants of the last minute (60 to 65 seconds), bulk requests with them.';
COMMENT ON COLUMN idgen.segments.warning IS 'What somebody should look into: more than 1,000 or 5,000 grants a minute; NULL: nothing.';
COMMENT ON COLUMN idgen.segments.created_at IS 'When the tag was made.';
COMMENT ON COLUMN idgen.segments.granted_at IS 'When the last range was granted.';
COMMENT ON COLUMN idgen.segments.segment_id IS 'Names the tag in audit events.';
COMMENT ON COLUMN idgen.segments.ids_left IS 'Ids up to limit_id that nobody has drawn: not yet granted, or in memory. Where several masters share the space: of this one''s.';
COMMENT ON COLUMN idgen.segments.stripe IS 'Which of the space''s masters grants here, from 0; NULL: nobody, because the tag is not cut in the stripes of its space (IG035).';
COMMENT ON COLUMN idgen.segments.stripes IS 'How many masters the tag is cut for; 1: one.';
COMMENT ON COLUMN idgen.segments.stripe_size IS 'Ids per stripe; NULL: one master.';

CREATE VIEW idgen.formats AS
SELECT f.name, f.compiled_in, f.epoch, f.sign_bits, f.ts_bits, f.region_bits, f.version_bits, f.node_bits, f.seq_bits,
       f.is_shard, (1 << f.seq_bits) AS ids_per_ms, e.ends_at,
       pg_catalog.round(extract(epoch FROM e.ends_at - pg_catalog.now()) OPERATOR(pg_catalog./) 31556952.0, 1) AS years_left,
       CASE WHEN pg_catalog.split_part(pg_catalog.split_part(s.worker_format, '/', 1), '(', 1) = f.name THEN 'now'
            WHEN pg_catalog.split_part(pg_catalog.split_part(s.next_format, '/', 1), '(', 1) = f.name THEN 'next'
       END AS cell
  FROM (SELECT true AS compiled_in, c.* FROM idgen.compiled_formats() c
        UNION ALL
        SELECT false, r.name, r.epoch, r.sign_bits, r.ts_bits, r.region_bits, r.version_bits, r.node_bits, r.seq_bits, r.is_shard
          FROM idgen.format r) f
 CROSS JOIN LATERAL (SELECT f.epoch + (((1::bigint << (f.ts_bits - 1 + f.sign_bits)) - 1) OPERATOR(pg_catalog.*) interval '1 ms') AS ends_at) e
 CROSS JOIN idgen.server_state() s;
COMMENT ON VIEW idgen.formats IS 'Every known layout of 64-bit ids: compiled in, or registered in this database.';
COMMENT ON COLUMN idgen.formats.name IS 'What the functions call it.';
COMMENT ON COLUMN idgen.formats.compiled_in IS 'True: part of the extension. False: a row of idgen.format.';
COMMENT ON COLUMN idgen.formats.epoch IS 'The moment of timestamp 0.';
COMMENT ON COLUMN idgen.formats.sign_bits IS '1: the top bit is always 0.';
COMMENT ON COLUMN idgen.formats.ts_bits IS 'Timestamp, in ms.';
COMMENT ON COLUMN idgen.formats.region_bits IS 'Region.';
COMMENT ON COLUMN idgen.formats.version_bits IS 'Version.';
COMMENT ON COLUMN idgen.formats.node_bits IS 'Worker or shard number.';
COMMENT ON COLUMN idgen.formats.seq_bits IS 'Sequence within one ms.';
COMMENT ON COLUMN idgen.formats.is_shard IS 'The node is a logical shard.';
COMMENT ON COLUMN idgen.formats.ids_per_ms IS 'Ids that one worker or shard can mint in one ms.';
COMMENT ON COLUMN idgen.formats.ends_at IS 'The last ms that an id can carry; after it calls that mint in it fail with IG010.';
COMMENT ON COLUMN idgen.formats.years_left IS 'From now to ends_at, in years.';
COMMENT ON COLUMN idgen.formats.cell IS 'now: idgen_snowflake() of this server mints in it; next: a switch to it is planned; else NULL.';

CREATE FUNCTION idgen.stat_values(
    OUT scope text, OUT object text, OUT role oid, OUT counter text, OUT value bigint, OUT warning text)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 100
AS 'MODULE_PATHNAME', 'idgen_stat_values';
COMMENT ON FUNCTION idgen.stat_values() IS 'The part of idgen.stats that is in shared memory; of roles, those that the caller has (all for members of pg_monitor). Without shared memory: no rows.';

CREATE FUNCTION idgen.reset_stats()
RETURNS void
LANGUAGE c VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_reset_stats';
COMMENT ON FUNCTION idgen.reset_stats() IS 'Count everything in idgen.stats and idgen.duplicate_key_errors, and the ids in idgen.slots, from zero again, for the whole server. Error: IG011 not preloaded.';
REVOKE ALL ON FUNCTION idgen.reset_stats() FROM PUBLIC;

CREATE VIEW idgen.stats AS
SELECT v.scope, CASE v.scope WHEN 'role' THEN coalesce(r.rolname::text, 'others') ELSE v.object END AS object,
       v.counter, v.value, v.warning
  FROM idgen.stat_values() v LEFT JOIN pg_catalog.pg_roles r ON r.oid = v.role
UNION ALL
SELECT 'tag', s.tag, c.counter, c.value, NULL
  FROM idgen.segments s CROSS JOIN idgen.space p
  JOIN idgen.segment_buffers() b ON b.segment_id = s.segment_id AND b.space_id = p.space_id
 CROSS JOIN LATERAL (VALUES ('ids', b.ids), ('refills', b.refills), ('refill_failures', b.refill_failures)) c (counter, value);
COMMENT ON VIEW idgen.stats IS 'Counters of this server since idgen.reset_stats() or its start (refills and refill_failures: since its start). Ids are counted per transaction, at its end at the latest. Roles: those that the caller has (all for members of pg_monitor); tags: as idgen.segments.';
COMMENT ON COLUMN idgen.stats.scope IS 'server, worker, shard, role, tag or error.';
COMMENT ON COLUMN idgen.stats.object IS 'Number of the worker or shard, name of the role or tag, SQLSTATE; NULL for the server. others: roles that were dropped or came after the first 128.';
COMMENT ON COLUMN idgen.stats.counter IS 'Server: counted_since_ms (Unix ms), ids (of all roles), clock_behind_ms (wall clock behind its maximum, now), clock_rewinds (times it fell behind by more than 5 ms), clock_rewind_ms_max, lead_ms and lead_ms_max (last id ahead of the highest wall time), exhaustions (calls that found a millisecond used up), lease_waits, waited_ms, burnt_ids, evictions (tags whose place in shared memory another one was given). Worker, shard: ids. Role: ids, ids_per_s_max. Tag: ids, refills, refill_failures. Error: raised.';
COMMENT ON COLUMN idgen.stats.value IS 'The count, or ms where the name says so.';
COMMENT ON COLUMN idgen.stats.warning IS 'What somebody should look into, in words; NULL: nothing.';

GRANT SELECT ON idgen.health, idgen.slots, idgen.segments, idgen.formats, idgen.stats TO PUBLIC;

REVOKE ALL ON FUNCTION
    idgen.server_clock(),
    idgen.note_clock(text, text, bigint, bigint),
    idgen.note_drained(text),
    idgen.claim_server(text),
    idgen.anchors(),
    idgen.store_anchor(uuid, text, text, bigint),
    idgen.install_lease(integer, uuid, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint, bigint),
    idgen.extend_lease(integer, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint),
    idgen.fence_lease(uuid, text, integer, bigint, bigint),
    idgen.store_identity()
FROM PUBLIC;

CREATE FUNCTION idgen.grant_daemon(role name)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format($grant$
        GRANT EXECUTE ON FUNCTION
            idgen.server_clock(),
            idgen.note_clock(text, text, bigint, bigint),
            idgen.note_drained(text),
            idgen.claim_server(text),
            idgen.anchors(),
            idgen.store_anchor(uuid, text, text, bigint),
            idgen.install_lease(integer, uuid, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint, bigint),
            idgen.extend_lease(integer, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint),
            idgen.fence_lease(uuid, text, integer, bigint, bigint),
            idgen.store_identity(),
            idgen.authority_wanted(),
            idgen.install_authority(uuid, uuid, integer, bigint, bigint, bigint),
            idgen.raise_ceiling(uuid, integer, bigint, bigint, text, bigint, bigint),
            idgen.fence_authority(uuid, integer),
            idgen.event_digest(date),
            idgen.archive_gate(date),
            idgen.drop_audit_day(date, integer),
            idgen.index_audit_day(),
            idgen.pass_over(uuid, text, bigint),
            idgen.witness_wanted(integer),
            idgen.witnessed(uuid),
            idgen.record_finding(text, text, uuid, text, bigint, bigint, jsonb, jsonb, text, text, bigint),
            idgen.duplicate_key_counts(),
            idgen.audit_settle(text, text)
        TO %1$I;
        GRANT SELECT, INSERT, UPDATE ON idgen.cell, idgen.lease, idgen.named_lease, idgen.named_ceiling, idgen.stripe, idgen.lease_order TO %1$I;
        GRANT SELECT, INSERT, UPDATE ON idgen.shard_assignment, idgen.server_drain TO %1$I;
        GRANT SELECT, INSERT, UPDATE, DELETE ON idgen.beacon, idgen.shard_server, idgen.shard_place, idgen.shard_map_state TO %1$I;
        GRANT SELECT, INSERT ON idgen.epoch TO %1$I;
        GRANT SELECT, INSERT, UPDATE (done_at, outcome) ON idgen.request TO %1$I;
        GRANT SELECT ON idgen.approval, idgen.approver TO %1$I;
        GRANT SELECT, DELETE ON idgen.lease_change TO %1$I;
        GRANT SELECT, INSERT, DELETE ON idgen.lease_event TO %1$I;
        GRANT SELECT, INSERT, UPDATE ON idgen.lease_trail TO %1$I;
        GRANT SELECT, INSERT, UPDATE, DELETE ON idgen.lease_event_key TO %1$I;
        GRANT SELECT ON idgen.format TO %1$I;
        GRANT SELECT, INSERT, UPDATE ON idgen.archive_day TO %1$I;
        GRANT SELECT, UPDATE (published) ON idgen.audit_event TO %1$I;
        GRANT SELECT ON idgen.space, idgen.duplicate_key_errors TO %1$I;
        GRANT SELECT, UPDATE ON idgen.drain_lease TO %1$I;
        GRANT SELECT, INSERT, UPDATE ON idgen.audit_run TO %1$I;
        GRANT SELECT ON idgen.audit_finding, idgen.segment, idgen.authority TO %1$I;
        GRANT SELECT, INSERT, UPDATE, DELETE ON idgen.audit_frontier TO %1$I;
        GRANT SELECT, INSERT, UPDATE ON idgen.lease_drained, idgen.audit_event_dlq, idgen.audit_day TO %1$I;
    $grant$, role);
END
$$;
COMMENT ON FUNCTION idgen.grant_daemon(name) IS
'Give a role what idgend needs in this database: the control functions and the tables of the embedded lease store. Such a role can install leases, hence mint any id: give it to the daemon alone. Only for the owner of the extension.';
REVOKE ALL ON FUNCTION idgen.grant_daemon(name) FROM PUBLIC;
