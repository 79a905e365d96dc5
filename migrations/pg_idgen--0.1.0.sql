-- Made by make install from sql/*.sql; edit those.
\echo Use "CREATE EXTENSION pg_idgen" to load this file. \quit

-- pg_idgen: the install script, in the order of its parts (make install joins them).
-- Functions named idgen_* are made in the schema that CREATE EXTENSION chooses; everything else lives in
-- schema idgen, which is the extension's own.

CREATE SCHEMA idgen;
COMMENT ON SCHEMA idgen IS 'pg_idgen: tables, views and administration. The generators (idgen_*) are in the extension''s schema.';
GRANT USAGE ON SCHEMA idgen TO PUBLIC;

-- The daemon's control functions. Contract version 1: see idgen-core/src/contract.rs.
-- Nothing here is executable by PUBLIC; idgen.grant_daemon(role) opens it for the daemon's role.

CREATE FUNCTION idgen.server_clock(
    OUT boot_id uuid, OUT boottime_ms bigint, OUT wall_ms bigint, OUT in_recovery boolean,
    OUT cell_id uuid, OUT extension_version text, OUT contract_version integer)
RETURNS record
LANGUAGE c VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_server_clock';
COMMENT ON FUNCTION idgen.server_clock() IS
'Daemon: identity of this shared memory and readings of this server''s clocks. boot_id is random and new whenever shared memory is (also after a crash-restart); boottime_ms is CLOCK_BOOTTIME and wall_ms CLOCK_REALTIME, both in ms, of the Postgres host; cell_id is the cell whose leases this data directory has had (file pg_idgen_cell); NULL before the first install. The call also counts as a sign of life of the daemon (idgen.lease_wait_ms). Error: IG011 not preloaded.';

CREATE FUNCTION idgen.claim_server()
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_claim_server';
COMMENT ON FUNCTION idgen.claim_server() IS
'Daemon: be the one daemon of this server, whatever database it is connected to, until this session ends. Returns false while another session is. Needs a session of its own (no transaction pooling). Error: IG011 not preloaded.';

CREATE FUNCTION idgen.install_lease(
    contract integer, boot_id uuid, cell_id uuid, format text, kind text, identity integer,
    token_epoch bigint, token_revision bigint, floor_ms bigint, ceiling_ms bigint, deadline_ms bigint,
    anchor_wall_ms bigint, anchor_boottime_ms bigint)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_install_lease';
COMMENT ON FUNCTION idgen.install_lease(integer, uuid, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint, bigint) IS
'Daemon: open a leased identity for minting. Ids carry timestamps in [floor_ms, ceiling_ms] (Unix ms) and are minted until deadline_ms (CLOCK_BOOTTIME of this server, ms). The token is (epoch, revision), compared in that order. anchor_*: a reading of server_clock() whose wall time the daemon has found good. Returns true when installed, false when the very same token is installed already. Errors: IG101 another boot id, IG102 token not newer, IG103 floor not above what was minted, IG104 deadline passed, IG105 another cell than this data directory belongs to, 58030 the cell could not be written to disk, IG106 contract version, IG009 format mismatch, IG012 in recovery, 22023 bad argument.';

CREATE FUNCTION idgen.extend_lease(
    contract integer, boot_id uuid, kind text, identity integer,
    token_epoch bigint, token_revision bigint, ceiling_ms bigint, deadline_ms bigint,
    anchor_wall_ms bigint, anchor_boottime_ms bigint)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_extend_lease';
COMMENT ON FUNCTION idgen.extend_lease(integer, uuid, text, integer, bigint, bigint, bigint, bigint, bigint, bigint) IS
'Daemon: raise ceiling and deadline of the token that is installed; never lowers either, never opens a closed one. anchor_* NULL: the wall clock was not found good, keep the older anchor. Returns false when that token is not the open one here (the daemon must then take a new one). Errors: IG101 another boot id, IG106 contract version, 22023 bad argument.';

CREATE FUNCTION idgen.fence_lease(
    boot_id uuid, kind text, identity integer, token_epoch bigint, token_revision bigint)
RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_fence_lease';
COMMENT ON FUNCTION idgen.fence_lease(uuid, text, integer, bigint, bigint) IS
'Daemon: close this token now. After the call returns no id of it is minted. Returns the exact last millisecond (Unix ms) that it may have minted in (floor - 1 when it minted nothing, or floor where a token before it had been closed right below), or NULL when that token is not the latest one installed. Error: IG101 another boot id.';

CREATE FUNCTION idgen.slot_states(
    OUT kind text, OUT identity integer, OUT state text, OUT generation integer,
    OUT token_epoch bigint, OUT token_revision bigint,
    OUT floor_ms bigint, OUT last_ms bigint, OUT ceiling_ms bigint,
    OUT deadline_ms bigint, OUT deadline_in_ms bigint)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 8
AS 'MODULE_PATHNAME', 'idgen_slot_states';
COMMENT ON FUNCTION idgen.slot_states() IS
'Every identity that was installed since this shared memory was made. state: open, expired (deadline passed), fenced. *_ms are Unix ms except deadline_ms (CLOCK_BOOTTIME ms); last_ms is floor_ms - 1, at the most floor_ms, when nothing was minted. Without shared memory: no rows.';

-- The embedded lease store: the tables of a *coordinator* database, read and written by daemons only.
-- Never dumped (a restored store must not come back to life), hence not registered for pg_dump.

CREATE TABLE idgen.cell (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    cell_id           uuid    NOT NULL,
    worker_format     text    NOT NULL,
    epoch             bigint  NOT NULL CHECK (epoch >= 0),
    epoch_nonce       uuid    NOT NULL,
    min_floor_ms      bigint  NOT NULL DEFAULT 0,
    revision          bigint  NOT NULL DEFAULT 0,
    sealed_reason     text,
    region            integer,
    system_identifier bigint  NOT NULL,
    timeline          integer NOT NULL,
    database_oid      oid     NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE idgen.cell IS 'Embedded lease store: the one row that names the cell. Made by the first daemon that uses this database as its store; never dumped.';
COMMENT ON COLUMN idgen.cell.one IS 'Always true: there is at most one row.';
COMMENT ON COLUMN idgen.cell.cell_id IS 'Snowflakes are unique within one cell and one format.';
COMMENT ON COLUMN idgen.cell.worker_format IS 'Format of the ids minted by worker identities; a property of the cell, never of a server.';
COMMENT ON COLUMN idgen.cell.epoch IS 'Rises after every restore; its parity names the half of the worker pool that may be leased.';
COMMENT ON COLUMN idgen.cell.epoch_nonce IS 'Random name of this epoch, compared by value: two histories may reach the same number.';
COMMENT ON COLUMN idgen.cell.min_floor_ms IS 'No window begins below this Unix ms.';
COMMENT ON COLUMN idgen.cell.revision IS 'Counts every change of this store; the second part of a fencing token.';
COMMENT ON COLUMN idgen.cell.sealed_reason IS 'NULL: open. Otherwise nothing is granted or renewed until the epoch is advanced, and this says why.';
COMMENT ON COLUMN idgen.cell.region IS 'Region of the cell for formats that carry one; claimed once.';
COMMENT ON COLUMN idgen.cell.system_identifier IS 'Identity of the database that may serve this store: system identifier,';
COMMENT ON COLUMN idgen.cell.timeline IS '... timeline,';
COMMENT ON COLUMN idgen.cell.database_oid IS '... and database. A restore by dump, a promoted standby, a recovered copy or a template clone does not match and is refused; a plain file copy started beside its original cannot be told from it.';
COMMENT ON COLUMN idgen.cell.created_at IS 'When the cell was made.';

CREATE TABLE idgen.lease (
    kind           text    NOT NULL CHECK (kind IN ('worker', 'shard')),
    identity       integer NOT NULL CHECK (identity >= 0),
    generation     bigint  NOT NULL CHECK (generation > 0),
    ceiling_ms     bigint  NOT NULL,
    exact          boolean NOT NULL DEFAULT false,
    revision       bigint  NOT NULL,
    holder         uuid,
    holder_name    text,
    token_epoch    bigint,
    token_revision bigint,
    boot_id        uuid,
    expires_at     timestamptz,
    PRIMARY KEY (kind, identity),
    CHECK ((holder IS NULL) = (token_revision IS NULL)
       AND (holder IS NULL) = (token_epoch IS NULL)
       AND (holder IS NULL) = (boot_id IS NULL)
       AND (holder IS NULL) = (expires_at IS NULL)
       AND (holder IS NULL) = (holder_name IS NULL))
);
COMMENT ON TABLE idgen.lease IS 'Embedded lease store: one row per identity that was ever leased. Rows are never deleted: ceiling_ms is what keeps the next holder above the last. Never dumped.';
COMMENT ON COLUMN idgen.lease.kind IS 'worker or shard.';
COMMENT ON COLUMN idgen.lease.identity IS 'The number that ids carry: 0 to 1023 for a worker, 0 to 8191 for a shard.';
COMMENT ON COLUMN idgen.lease.generation IS 'Counts the grants of this identity.';
COMMENT ON COLUMN idgen.lease.ceiling_ms IS 'Highest Unix ms that was ever granted; the next window begins above it.';
COMMENT ON COLUMN idgen.lease.exact IS 'True: ceiling_ms is the exact high water of a clean release. False: the end of a granted window.';
COMMENT ON COLUMN idgen.lease.revision IS 'Store revision of the last change of this row; guards every compare-and-swap.';
COMMENT ON COLUMN idgen.lease.holder IS 'Instance id of the daemon that holds it; NULL: nobody.';
COMMENT ON COLUMN idgen.lease.holder_name IS 'Name of that daemon, for people.';
COMMENT ON COLUMN idgen.lease.token_epoch IS 'Fencing token of the grant: the epoch it was made in,';
COMMENT ON COLUMN idgen.lease.token_revision IS '... and the store revision it was made at. Kept over renewals.';
COMMENT ON COLUMN idgen.lease.boot_id IS 'The shared memory the token was granted for; it is never installed into another.';
COMMENT ON COLUMN idgen.lease.expires_at IS 'By this database''s clock. Only availability depends on it, never uniqueness.';

CREATE FUNCTION idgen.store_identity(
    OUT system_identifier bigint, OUT timeline integer, OUT database_oid oid)
RETURNS record
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- The WAL file name carries the insertion timeline; the control file lags behind a promotion.
AS $$
    SELECT s.system_identifier,
           ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer,
           (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      FROM pg_control_system() s
$$;
COMMENT ON FUNCTION idgen.store_identity() IS
'Daemon: what idgen.cell compares itself with: system identifier, WAL insertion timeline, database oid. Fails on a standby.';

-- Snowflakes and UUIDs.

CREATE FUNCTION idgen_snowflake()
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_snowflake';
COMMENT ON FUNCTION idgen_snowflake() IS
'A 64-bit id from this server''s leased worker identities, in the worker format of its cell (classic: 41 bits ms since 2020-01-01 UTC, 10 bits worker, 12 bits sequence). Unique within the cell, always positive, strictly rising within a session. Errors: IG001 no lease, IG002 window used up, IG003 clock went back, IG004 deadline passed, IG010 end of epoch, IG011 not preloaded, IG012 in recovery, IG015 clock stands still. Waits up to idgen.lease_wait_ms for a lease that is likely to come back.';

CREATE FUNCTION idgen_uuidv7()
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7';
COMMENT ON FUNCTION idgen_uuidv7() IS
'A UUID version 7 (RFC 9562, 6.2 method 3): 48 bits Unix ms, 12 bits of its fraction, an 18-bit counter and 44 random bits; strictly rising within a backend process. Needs no lease, no preload, and works on a standby.';

CREATE FUNCTION idgen_parse(
    id bigint, format text DEFAULT 'classic',
    OUT ts timestamptz, OUT region integer, OUT version integer,
    OUT worker integer, OUT shard integer, OUT sequence integer)
RETURNS record
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_parse_bigint';
COMMENT ON FUNCTION idgen_parse(bigint, text) IS
'The fields of a snowflake, for debugging, not a contract. format: classic, regional or sharded; an id does not say which one it is of. ts has ms precision. Fields that the format does not have are NULL; all are NULL for a negative id. Error: 22023 unknown format.';

CREATE FUNCTION idgen_parse(id uuid, OUT ts timestamptz, OUT version integer)
RETURNS record
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_parse_uuid';
COMMENT ON FUNCTION idgen_parse(uuid) IS
'Time (ms precision) and version of a UUID version 7; NULLs for any other UUID.';

CREATE FUNCTION idgen_timestamp(id bigint, format text DEFAULT 'classic')
RETURNS timestamptz
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_timestamp_bigint';
COMMENT ON FUNCTION idgen_timestamp(bigint, text) IS
'The time in a snowflake of the given format (classic, regional or sharded), ms precision; NULL for a negative id. Error: 22023 unknown format.';

CREATE FUNCTION idgen_timestamp(id uuid)
RETURNS timestamptz
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_timestamp_uuid';
COMMENT ON FUNCTION idgen_timestamp(uuid) IS
'The time in a UUID version 7, ms precision; NULL for a UUID of another version.';

-- Batches, bounds in time, and text forms.

CREATE FUNCTION idgen_snowflake_batch(n bigint)
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL RESTRICTED ROWS 1000
AS 'MODULE_PATHNAME', 'idgen_snowflake_batch';
COMMENT ON FUNCTION idgen_snowflake_batch(bigint) IS
'n snowflakes, rising, made row by row in constant memory; one compare-and-swap claims up to 4,096. For loads by INSERT ... SELECT, and for COPY with ids filled in before. Errors: 22023 n below 1, 22004 NULL, and those of idgen_snowflake().';

CREATE FUNCTION idgen_uuidv7_batch(n bigint)
RETURNS SETOF uuid
LANGUAGE c VOLATILE PARALLEL SAFE ROWS 1000
AS 'MODULE_PATHNAME', 'idgen_uuidv7_batch';
COMMENT ON FUNCTION idgen_uuidv7_batch(bigint) IS
'n UUIDs version 7, strictly rising, made row by row in constant memory. Errors: 22023 n below 1, 22004 NULL.';

CREATE FUNCTION idgen_uuidv7_at(at timestamptz)
RETURNS uuid
LANGUAGE c VOLATILE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7_at';
COMMENT ON FUNCTION idgen_uuidv7_at(timestamptz) IS
'A UUID version 7 of the given time (microseconds precision) with 62 random bits, to give history its ids; two of one microseconds are in no order. Error: 22008 before 1970, after the year 10889, or infinite.';

CREATE FUNCTION idgen_snowflake_min(at timestamptz, format text DEFAULT 'classic')
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_snowflake_min';
COMMENT ON FUNCTION idgen_snowflake_min(timestamptz, text) IS
'The smallest id of the format whose time is at or after the given one: WHERE id >= idgen_snowflake_min(t), or the FROM of a partition. Clamped: 0 before the epoch, the largest bigint after the end. Error: 22023 unknown format.';

CREATE FUNCTION idgen_snowflake_max(at timestamptz, format text DEFAULT 'classic')
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_snowflake_max';
COMMENT ON FUNCTION idgen_snowflake_max(timestamptz, text) IS
'The largest id of the format whose time is at or before the given one: WHERE id <= idgen_snowflake_max(t). Clamped: -1 before the epoch, the last id after the end. Error: 22023 unknown format.';

CREATE FUNCTION idgen_uuidv7_min(at timestamptz)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7_min';
COMMENT ON FUNCTION idgen_uuidv7_min(timestamptz) IS
'The smallest UUID version 7 whose time (ms precision) is at or after the given one, whoever made it. Clamped to 1970 and to the end of 48 bits of ms.';

CREATE FUNCTION idgen_uuidv7_max(at timestamptz)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7_max';
COMMENT ON FUNCTION idgen_uuidv7_max(timestamptz) IS
'The largest UUID version 7 whose time (ms precision) is at or before the given one, whoever made it. Clamped to 1970 and to the end of 48 bits of ms.';

CREATE FUNCTION idgen_cursor_floor(id bigint, overlap interval)
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_cursor_floor';
COMMENT ON FUNCTION idgen_cursor_floor(bigint, interval) IS
'Where a cursor that has read up to a classic snowflake reads again from, so that rows that became visible late or came from a server with a slower clock are not missed: the smallest id of (time of id - overlap), 0 at the least. NULL for a negative id. Error: 22023 for an overlap that is negative or has months or days.';

CREATE FUNCTION idgen_encode(id bigint)
RETURNS text
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_encode';
COMMENT ON FUNCTION idgen_encode(bigint) IS
'An id as 13 characters of Crockford''s base 32, for JSON, where a number above 2^53 is rounded. Texts sort as their ids do. Not a secret: see idgen_decode(). Error: 22023 for a negative number.';

CREATE FUNCTION idgen_decode(encoded text)
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_decode';
COMMENT ON FUNCTION idgen_decode(text) IS
'The id that idgen_encode() has written; lower case, I and L for 1, O for 0 and hyphens are understood. Error: 22P02 for anything else.';

-- Segments: dense ids from ranges that a table grants, and the audit event of every grant.

CREATE TABLE idgen.space (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    space_id     uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    source_id    uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    database_oid oid  NOT NULL
);
COMMENT ON TABLE idgen.space IS 'The one row that names this database: its tag space and its source of audit events. Not dumped: a restored copy is another space. Renewed when the database turns out to be a clone.';
COMMENT ON COLUMN idgen.space.one IS 'Always true: there is one row.';
COMMENT ON COLUMN idgen.space.space_id IS 'Segment ids are unique within one tag of one space.';
COMMENT ON COLUMN idgen.space.source_id IS '(source_id, event_id) names an audit event for everybody downstream.';
COMMENT ON COLUMN idgen.space.database_oid IS 'The database the ids were made for; another oid means a clone by CREATE DATABASE ... TEMPLATE.';
INSERT INTO idgen.space (database_oid)
SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database();

CREATE TABLE idgen.segment (
    tag          text COLLATE "C" PRIMARY KEY CHECK (octet_length(tag) BETWEEN 1 AND 200),
    segment_id   uuid    NOT NULL UNIQUE DEFAULT pg_catalog.gen_random_uuid(),
    owner        name    NOT NULL,
    start_id     bigint  NOT NULL CHECK (start_id >= 1),
    max_id       bigint  NOT NULL,
    limit_id     bigint  NOT NULL,
    step         integer NOT NULL CHECK (step BETWEEN 1 AND 1000000),
    max_step     integer NOT NULL,
    step_hint    integer CHECK (step_hint BETWEEN 1 AND 1000000),
    fetch_limit  integer CHECK (fetch_limit > 0),
    stripe_size  bigint  CHECK (stripe_size > 0),
    stripe_count integer NOT NULL DEFAULT 1 CHECK (stripe_count BETWEEN 1 AND 64),
    tag_seq      bigint  NOT NULL DEFAULT 1,
    version      bigint  NOT NULL DEFAULT 1,
    needs_burn   boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    granted_at   timestamptz,
    dropped_at   timestamptz,
    CHECK (max_step BETWEEN step AND 1000000),
    CHECK (limit_id >= start_id),
    CHECK (max_id >= start_id - 1 AND max_id <= limit_id)
);
COMMENT ON TABLE idgen.segment IS 'One row per segment tag. A grant moves max_id up in a committed transaction before any id of the range is used. Change it with the idgen_* functions only.';
COMMENT ON COLUMN idgen.segment.tag IS 'Name that idgen_segment() is called with; 1 to 200 bytes.';
COMMENT ON COLUMN idgen.segment.segment_id IS 'Names the tag in shared memory and in audit events.';
COMMENT ON COLUMN idgen.segment.owner IS 'Role that has made it; may use it and grant it.';
COMMENT ON COLUMN idgen.segment.start_id IS 'First id.';
COMMENT ON COLUMN idgen.segment.max_id IS 'Highest id that was ever granted; start_id - 1 before the first grant. Never goes down.';
COMMENT ON COLUMN idgen.segment.limit_id IS 'Highest id that may be granted (inclusive).';
COMMENT ON COLUMN idgen.segment.step IS 'Least ids per grant, 1 to 1,000,000.';
COMMENT ON COLUMN idgen.segment.max_step IS 'Most ids per grant, step to 1,000,000: what one crash may burn twice.';
COMMENT ON COLUMN idgen.segment.step_hint IS 'Step of the last grant (which gave fewer ids only at the limit); it adapts so that a range lasts about 15 minutes.';
COMMENT ON COLUMN idgen.segment.fetch_limit IS 'Grants per minute; NULL: no limit. Not enforced by this release.';
COMMENT ON COLUMN idgen.segment.stripe_size IS 'Ids per stripe where several masters share the space; NULL: one master. Not used by this release.';
COMMENT ON COLUMN idgen.segment.stripe_count IS 'Number of masters; 1 in this release.';
COMMENT ON COLUMN idgen.segment.tag_seq IS 'Number of the last audit event of this tag, without gaps.';
COMMENT ON COLUMN idgen.segment.version IS 'Raised by every change of the definition.';
COMMENT ON COLUMN idgen.segment.needs_burn IS 'The row came by restore or replication. Not used by this release.';
COMMENT ON COLUMN idgen.segment.created_at IS 'When it was made.';
COMMENT ON COLUMN idgen.segment.granted_at IS 'When the last range was granted.';
COMMENT ON COLUMN idgen.segment.dropped_at IS 'Not NULL: a tombstone, kept so that its ids never come back.';

CREATE TABLE idgen.segment_grant (
    tag        text COLLATE "C" NOT NULL REFERENCES idgen.segment (tag),
    grantee    name NOT NULL,
    granted_by name NOT NULL DEFAULT session_user,
    granted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (tag, grantee)
);
COMMENT ON TABLE idgen.segment_grant IS 'Roles that may draw from a tag beside its owner; kept by idgen.grant_segment().';
COMMENT ON COLUMN idgen.segment_grant.tag IS 'The tag.';
COMMENT ON COLUMN idgen.segment_grant.grantee IS 'Role name, or public for every role.';
COMMENT ON COLUMN idgen.segment_grant.granted_by IS 'Session user that gave the right.';
COMMENT ON COLUMN idgen.segment_grant.granted_at IS 'When.';

CREATE SEQUENCE idgen.audit_event_id_seq;
COMMENT ON SEQUENCE idgen.audit_event_id_seq IS 'event_id of idgen.audit_event; dumped, so that a restored database goes on above.';

CREATE TABLE idgen.audit_event (
    event_id  bigint  NOT NULL DEFAULT pg_catalog.nextval('idgen.audit_event_id_seq'),
    source_id uuid    NOT NULL,
    at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    tx        xid8    NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    kind      text    NOT NULL,
    space_id  uuid    NOT NULL,
    tag       text COLLATE "C" NOT NULL,
    tag_seq   bigint  NOT NULL,
    lo        bigint,
    hi        bigint,
    token_epoch    bigint,
    token_revision bigint,
    payload   jsonb   NOT NULL DEFAULT '{}',
    published boolean NOT NULL DEFAULT false,
    CHECK ((lo IS NULL) = (hi IS NULL) AND lo <= hi)
) PARTITION BY RANGE (at);
COMMENT ON TABLE idgen.audit_event IS 'Outbox: one row per event of a tag, written in the transaction of the event. Partitioned by UTC day; the leaves are made by the refill workers and carry the keys and indexes.';
COMMENT ON COLUMN idgen.audit_event.event_id IS 'Rises, with gaps; unique together with source_id.';
COMMENT ON COLUMN idgen.audit_event.source_id IS 'The database that recorded it (idgen.space).';
COMMENT ON COLUMN idgen.audit_event.at IS 'When it was recorded (clock, not transaction start).';
COMMENT ON COLUMN idgen.audit_event.tx IS 'Transaction of the database that recorded it.';
COMMENT ON COLUMN idgen.audit_event.kind IS 'segment.create, segment.grant or segment.burn in this release.';
COMMENT ON COLUMN idgen.audit_event.space_id IS 'Tag space; (space_id, tag) is the key of everybody downstream.';
COMMENT ON COLUMN idgen.audit_event.tag IS 'The tag.';
COMMENT ON COLUMN idgen.audit_event.tag_seq IS 'Counts the events of the tag by one, taken under its row lock.';
COMMENT ON COLUMN idgen.audit_event.lo IS 'First id of a granted or burned range.';
COMMENT ON COLUMN idgen.audit_event.hi IS 'Last id of a granted or burned range.';
COMMENT ON COLUMN idgen.audit_event.token_epoch IS 'Fencing token of a leased authority; NULL in this release.';
COMMENT ON COLUMN idgen.audit_event.token_revision IS 'Fencing token of a leased authority; NULL in this release.';
COMMENT ON COLUMN idgen.audit_event.payload IS 'What else is to be known, by kind.';
COMMENT ON COLUMN idgen.audit_event.published IS 'The outbox has handed it on.';

-- What a dump takes along: tags and rights with the highest granted id, and the position of event_id. Never
-- the space (a copy is another one) nor the lease store (a restored one must not come back to life).
SELECT pg_catalog.pg_extension_config_dump('idgen.segment', '');
SELECT pg_catalog.pg_extension_config_dump('idgen.segment_grant', '');
SELECT pg_catalog.pg_extension_config_dump('idgen.audit_event_id_seq', '');

CREATE FUNCTION idgen.segment_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'idgen_segment_changed';
COMMENT ON FUNCTION idgen.segment_changed() IS 'Trigger: tells every session at commit that what it remembers of tags and rights is void.';

CREATE TRIGGER segment_changed
AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF tag, segment_id, owner, dropped_at ON idgen.segment
FOR EACH STATEMENT EXECUTE FUNCTION idgen.segment_changed();
COMMENT ON TRIGGER segment_changed ON idgen.segment IS 'See idgen.segment_changed().';
CREATE TRIGGER segment_grant_changed
AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE ON idgen.segment_grant
FOR EACH STATEMENT EXECUTE FUNCTION idgen.segment_changed();
COMMENT ON TRIGGER segment_grant_changed ON idgen.segment_grant IS 'See idgen.segment_changed().';

CREATE FUNCTION idgen_create_segment(
    tag text, start_id bigint DEFAULT 1, step integer DEFAULT 1000, max_step integer DEFAULT 10000,
    limit_id bigint DEFAULT 9223372036854775807)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_create_segment';
COMMENT ON FUNCTION idgen_create_segment(text, bigint, integer, integer, bigint) IS
'Make a segment tag; it belongs to the caller. tag: 1 to 200 bytes. start_id: first id, at least 1. step, max_step: least and most ids per database write, 1 to 1,000,000, step <= max_step. limit_id: last id, at least start_id. Can be used at once in the same transaction. Errors: IG016 the tag exists, 22023 an argument out of range, 22004 NULL, IG012 in recovery.';

CREATE FUNCTION idgen_segment(tag text)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_segment';
COMMENT ON FUNCTION idgen_segment(text) IS
'The next id of a segment tag: dense, never issued twice within the tag''s space, not given back by a rollback, in rising order per server but for waits. Errors: IG005 unknown tag, IG006 exhausted, IG007 no new range within idgen.segment_wait_ms, IG011 not preloaded, IG012 in recovery, IG013 no right, IG017 too many tags, 22004 NULL.';

CREATE FUNCTION idgen.segment_buffers(
    OUT segment_id uuid, OUT space_id uuid, OUT remaining bigint, OUT step integer,
    OUT refills bigint, OUT refill_failures bigint, OUT refill_us bigint,
    OUT granted_ms_ago bigint, OUT wanted boolean, OUT blocker_pid integer)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 100
AS 'MODULE_PATHNAME', 'idgen_segment_buffers';
COMMENT ON FUNCTION idgen.segment_buffers() IS
'The ranges of this database in shared memory, one row per tag used since the server started. remaining: ids that need no database write; refill_us: time of the last refill in microseconds. Without shared memory: no rows.';

CREATE FUNCTION idgen.grant_segment(tag text, grantee text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_grant_segment';
COMMENT ON FUNCTION idgen.grant_segment(text, text) IS
'Let a role (or public) draw from a tag. Only for the tag''s owner. Errors: IG005 unknown tag, IG013 not the owner, 42704 no such role.';

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

CREATE VIEW idgen.slots AS
SELECT s.kind, s.identity, s.state, s.generation, s.token_epoch, s.token_revision,
       pg_catalog.to_timestamp(s.floor_ms / 1000.0) AS floor,
       pg_catalog.to_timestamp(s.last_ms / 1000.0) AS last,
       pg_catalog.to_timestamp(s.ceiling_ms / 1000.0) AS ceiling,
       s.floor_ms, s.last_ms, s.ceiling_ms, s.deadline_in_ms,
       s.ceiling_ms - (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint AS ceiling_lead_ms
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
