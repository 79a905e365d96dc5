-- What people look at, and who may do what.

CREATE FUNCTION idgen.server_state(
    OUT version text, OUT contract_version integer, OUT preloaded boolean, OUT in_recovery boolean,
    OUT boot_id uuid, OUT cell_id uuid, OUT worker_format text, OUT daemon_seen_ms_ago bigint,
    OUT open_slots integer, OUT deadline_in_ms bigint, OUT state text)
RETURNS record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_server_state';
COMMENT ON FUNCTION idgen.server_state() IS 'The server''s part of idgen.health.';

CREATE VIEW idgen.health AS
SELECT s.state, s.version, s.contract_version, s.preloaded, s.in_recovery, s.open_slots, s.deadline_in_ms,
       s.daemon_seen_ms_ago, s.boot_id, s.cell_id, s.worker_format, p.space_id, p.source_id
  FROM idgen.server_state() s CROSS JOIN idgen.space p;
COMMENT ON VIEW idgen.health IS 'One row: is this server able to mint? state: serving, no lease, not preloaded, in recovery.';
COMMENT ON COLUMN idgen.health.state IS 'serving, no lease, not preloaded or in recovery.';
COMMENT ON COLUMN idgen.health.version IS 'Version of the library that is loaded.';
COMMENT ON COLUMN idgen.health.contract_version IS 'What a daemon must speak.';
COMMENT ON COLUMN idgen.health.preloaded IS 'shared_preload_libraries has pg_idgen.';
COMMENT ON COLUMN idgen.health.in_recovery IS 'A standby: no snowflakes, no segments.';
COMMENT ON COLUMN idgen.health.open_slots IS 'Worker identities that can mint now.';
COMMENT ON COLUMN idgen.health.deadline_in_ms IS 'When the last of them stops unless the daemon renews.';
COMMENT ON COLUMN idgen.health.daemon_seen_ms_ago IS 'Since when the daemon has been silent; NULL: never seen.';
COMMENT ON COLUMN idgen.health.boot_id IS 'Name of this shared memory; new after every (crash-)restart.';
COMMENT ON COLUMN idgen.health.cell_id IS 'Where snowflakes are unique; NULL before the first lease.';
COMMENT ON COLUMN idgen.health.worker_format IS 'Format of idgen_snowflake() in this cell.';
COMMENT ON COLUMN idgen.health.space_id IS 'Where segment ids are unique, per tag.';
COMMENT ON COLUMN idgen.health.source_id IS 'This database as a source of audit events.';

-- Operators by their full names where the arguments are converted: one in the target schema that takes them as they
-- are would be meant otherwise, and run as whoever looks.
CREATE VIEW idgen.slots AS
SELECT s.kind, s.identity, s.state, s.generation, s.token_epoch, s.token_revision,
       pg_catalog.to_timestamp(s.floor_ms OPERATOR(pg_catalog./) 1000.0) AS floor,
       pg_catalog.to_timestamp(s.last_ms OPERATOR(pg_catalog./) 1000.0) AS last,
       pg_catalog.to_timestamp(s.ceiling_ms OPERATOR(pg_catalog./) 1000.0) AS ceiling,
       s.floor_ms, s.last_ms, s.ceiling_ms, s.deadline_in_ms,
       s.ceiling_ms - (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint AS ceiling_lead_ms
  FROM idgen.slot_states() s;
COMMENT ON VIEW idgen.slots IS 'The leased identities of this server since its shared memory was made.';
COMMENT ON COLUMN idgen.slots.kind IS 'worker in this release.';
COMMENT ON COLUMN idgen.slots.identity IS 'The number that ids carry.';
COMMENT ON COLUMN idgen.slots.state IS 'open, expired (deadline passed) or fenced.';
COMMENT ON COLUMN idgen.slots.generation IS 'Generation of the mint word, modulo 2048.';
COMMENT ON COLUMN idgen.slots.token_epoch IS 'Fencing token: epoch,';
COMMENT ON COLUMN idgen.slots.token_revision IS '... and revision of the lease store.';
COMMENT ON COLUMN idgen.slots.floor IS 'Ids carry times from here ...';
COMMENT ON COLUMN idgen.slots.last IS '... the last one carried this ...';
COMMENT ON COLUMN idgen.slots.ceiling IS '... and none will lie above this.';
COMMENT ON COLUMN idgen.slots.floor_ms IS 'floor in Unix ms.';
COMMENT ON COLUMN idgen.slots.last_ms IS 'last in Unix ms.';
COMMENT ON COLUMN idgen.slots.ceiling_ms IS 'ceiling in Unix ms.';
COMMENT ON COLUMN idgen.slots.deadline_in_ms IS 'Until it stops minting unless renewed; negative: it has.';
COMMENT ON COLUMN idgen.slots.ceiling_lead_ms IS 'ceiling minus the wall clock of this server.';

CREATE VIEW idgen.segments AS
SELECT s.tag, s.owner, s.start_id, s.max_id, s.limit_id, s.step, s.max_step,
       b.step AS step_in_use, b.remaining, b.refills, b.refill_failures, b.refill_us,
       b.granted_ms_ago, b.wanted, b.blocker_pid, s.created_at, s.granted_at, s.segment_id
  FROM idgen.segment s CROSS JOIN idgen.space p
  LEFT JOIN idgen.segment_buffers() b ON b.segment_id = s.segment_id AND b.space_id = p.space_id
 WHERE s.dropped_at IS NULL
   AND (EXISTS (SELECT FROM pg_catalog.pg_roles r
                 WHERE r.rolname = s.owner AND pg_catalog.pg_has_role(r.oid, 'USAGE'))
        OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));
COMMENT ON VIEW idgen.segments IS 'The tags that the caller owns (all for members of pg_monitor), with what shared memory has of them; NULL there: not used since the server started.';
COMMENT ON COLUMN idgen.segments.tag IS 'Name that idgen_segment() is called with.';
COMMENT ON COLUMN idgen.segments.owner IS 'Role that has made it.';
COMMENT ON COLUMN idgen.segments.start_id IS 'First id.';
COMMENT ON COLUMN idgen.segments.max_id IS 'Highest id granted.';
COMMENT ON COLUMN idgen.segments.limit_id IS 'Highest id that may be granted.';
COMMENT ON COLUMN idgen.segments.step IS 'Least ids per grant.';
COMMENT ON COLUMN idgen.segments.max_step IS 'Most ids per grant.';
COMMENT ON COLUMN idgen.segments.step_in_use IS 'Ids of the last grant.';
COMMENT ON COLUMN idgen.segments.remaining IS 'Ids that need no database write.';
COMMENT ON COLUMN idgen.segments.refills IS 'Ranges taken in since the server started.';
COMMENT ON COLUMN idgen.segments.refill_failures IS 'Refills that brought nothing since the server started.';
COMMENT ON COLUMN idgen.segments.refill_us IS 'Time of the last refill, microseconds.';
COMMENT ON COLUMN idgen.segments.granted_ms_ago IS 'Age of the last range, ms.';
COMMENT ON COLUMN idgen.segments.wanted IS 'A refill has been asked for and has not begun.';
COMMENT ON COLUMN idgen.segments.blocker_pid IS 'Process that held the tag''s row when the last refill failed.';
COMMENT ON COLUMN idgen.segments.created_at IS 'When the tag was made.';
COMMENT ON COLUMN idgen.segments.granted_at IS 'When the last range was granted.';
COMMENT ON COLUMN idgen.segments.segment_id IS 'Names the tag in audit events.';

GRANT SELECT ON idgen.health, idgen.slots, idgen.segments TO PUBLIC;

REVOKE ALL ON FUNCTION
    idgen.server_clock(),
    idgen.claim_server(),
    idgen.install_lease(integer, uuid, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint, bigint),
    idgen.extend_lease(integer, uuid, text, integer, bigint, bigint, bigint, bigint, bigint, bigint),
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
            idgen.claim_server(),
            idgen.install_lease(integer, uuid, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint, bigint),
            idgen.extend_lease(integer, uuid, text, integer, bigint, bigint, bigint, bigint, bigint, bigint),
            idgen.fence_lease(uuid, text, integer, bigint, bigint),
            idgen.store_identity()
        TO %1$I;
        GRANT SELECT, INSERT, UPDATE ON idgen.cell, idgen.lease TO %1$I;
    $grant$, role);
END
$$;
COMMENT ON FUNCTION idgen.grant_daemon(name) IS
'Give a role what idgend needs in this database: the control functions and the tables of the embedded lease store. Such a role can install leases, hence mint any id: give it to the daemon alone. Only for the owner of the extension.';
REVOKE ALL ON FUNCTION idgen.grant_daemon(name) FROM PUBLIC;
