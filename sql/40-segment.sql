-- Segments: dense ids from ranges that a table grants, and the audit event of every grant.

CREATE TABLE idgen.space (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    space_id     uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    source_id    uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    database_oid oid  NOT NULL,
    stripe       integer NOT NULL DEFAULT 0,
    stripes      integer NOT NULL DEFAULT 1 CHECK (stripes BETWEEN 1 AND 64),
    stripe_size  bigint CHECK (stripe_size > 0),
    above        bigint NOT NULL DEFAULT 0 CHECK (above >= 0),
    CHECK (stripe >= 0 AND stripe < stripes),
    CHECK ((stripes = 1) = (stripe_size IS NULL))
);
COMMENT ON TABLE idgen.space IS 'The one row that names this database: its tag space and its source of audit events. Not dumped: a restored copy is another space. Renewed when the database turns out to be a clone.';
COMMENT ON COLUMN idgen.space.one IS 'Always true: there is one row.';
COMMENT ON COLUMN idgen.space.space_id IS 'Segment ids are unique within one tag of one space.';
COMMENT ON COLUMN idgen.space.source_id IS '(source_id, event_id) names an audit event for everybody downstream. Another one whenever events may have been recorded that this database does not know of: with another history (idgen.authority.mark).';
COMMENT ON COLUMN idgen.space.database_oid IS 'The database the ids were made for; another oid means a clone by CREATE DATABASE ... TEMPLATE.';
COMMENT ON COLUMN idgen.space.stripe IS 'Which of the space''s masters this database is, from 0. Set by idgen.join_space().';
COMMENT ON COLUMN idgen.space.stripes IS 'How many masters the space is cut for; 1: this database alone.';
COMMENT ON COLUMN idgen.space.stripe_size IS 'Ids per stripe: the first stripe is master 0''s, the next master 1''s, and so on, over and over; NULL: one master.';
COMMENT ON COLUMN idgen.space.above IS 'Ids up to it were granted before the space was cut; nobody grants them now.';
CREATE FUNCTION idgen.server_home(
    OUT system_identifier bigint, OUT timeline integer, OUT machine text, OUT os_boot text,
    OUT device bigint, OUT inode bigint)
RETURNS record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_server_home';
COMMENT ON FUNCTION idgen.server_home() IS 'What idgen.authority compares itself with: the history of this cluster (system identifier, timeline of the write-ahead log) and the place of its data directory (machine id, boot id of the running system, device and inode number). Error: IG012 in recovery.';

CREATE TABLE idgen.authority (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    mark              uuid    NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    cause             text,
    changes           bigint  NOT NULL DEFAULT 0,
    changed_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    system_identifier bigint  NOT NULL,
    timeline          integer NOT NULL,
    machine           text,
    os_boot           text,
    device            bigint  NOT NULL,
    inode             bigint  NOT NULL,
    sources_before    uuid[]  NOT NULL DEFAULT '{}',
    unheard           integer NOT NULL DEFAULT 0 CHECK (unheard >= 0),
    is_witnessed      boolean NOT NULL DEFAULT true,
    witness_wait      integer NOT NULL DEFAULT 0 CHECK (witness_wait BETWEEN 0 AND 86400)
);
COMMENT ON TABLE idgen.authority IS 'The one row that says where this database was when it granted ranges last. Another history (a promotion, a recovery, an upgrade): every tag passes over its safety burn. The same history in another place: a copy, which grants nothing until idgen.adopt_authority(). Not dumped.';
COMMENT ON COLUMN idgen.authority.one IS 'Always true: there is one row.';
COMMENT ON COLUMN idgen.authority.mark IS 'Renewed whenever ranges may have been granted that this database does not know of; a tag whose mark is another one burns first.';
COMMENT ON COLUMN idgen.authority.cause IS 'Why it was renewed last; NULL: never.';
COMMENT ON COLUMN idgen.authority.changes IS 'Counts the events of the whole space: tag_seq of the last event authority.* or space.*.';
COMMENT ON COLUMN idgen.authority.changed_at IS 'When.';
COMMENT ON COLUMN idgen.authority.system_identifier IS 'Of the cluster.';
COMMENT ON COLUMN idgen.authority.timeline IS 'Of the write-ahead log.';
COMMENT ON COLUMN idgen.authority.machine IS 'Machine id (/etc/machine-id); NULL: it has none.';
COMMENT ON COLUMN idgen.authority.os_boot IS 'Boot id of the running system, which tells whether device numbers can be compared; NULL: it has none.';
COMMENT ON COLUMN idgen.authority.device IS 'Device number of the data directory.';
COMMENT ON COLUMN idgen.authority.inode IS 'Inode number of the data directory.';
COMMENT ON COLUMN idgen.authority.sources_before IS 'The source_id that this database had in each history before this one, the last one last: under these it has recorded its events.';
COMMENT ON COLUMN idgen.authority.unheard IS 'How many histories have ended, one after the other, since topic and archive were asked last: of the first of these everything may be missing.';
COMMENT ON COLUMN idgen.authority.is_witnessed IS 'False since it was renewed until idgen.witnessed(): what topic and archive know of grants that the old history has lost was not told yet.';
COMMENT ON COLUMN idgen.authority.witness_wait IS 'So many seconds after changed_at tags wait for that before they serve again (IG033), at the most; 0: not at all. Set by the daemon that looks after the database, from its [audit] promotion_wait_seconds; hence a standby that is promoted knows whether one will come. A leased authority does not wait: its ceilings are in the lease store.';
INSERT INTO idgen.authority (system_identifier, timeline, machine, os_boot, device, inode)
SELECT h.system_identifier, h.timeline, h.machine, h.os_boot, h.device, h.inode FROM idgen.server_home() h
    ON CONFLICT DO NOTHING;

INSERT INTO idgen.space (database_oid)
SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
    ON CONFLICT DO NOTHING;

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
    rate_per_minute bigint NOT NULL DEFAULT 0 CHECK (rate_per_minute >= 0),
    rate_since_ms   bigint NOT NULL DEFAULT 0,
    rate_since_id   bigint NOT NULL DEFAULT 0,
    safety_burn     bigint CHECK (safety_burn >= 0),
    mark            uuid,
    leased          boolean NOT NULL DEFAULT false,
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
COMMENT ON COLUMN idgen.segment.fetch_limit IS 'Grants per minute; NULL: no limit.';
COMMENT ON COLUMN idgen.segment.stripe_size IS 'Ids per stripe of the space in which max_id counts; NULL: one master. In a space that is cut otherwise the tag grants nothing (IG035).';
COMMENT ON COLUMN idgen.segment.stripe_count IS 'Number of masters of that space; 1: one.';
COMMENT ON COLUMN idgen.segment.tag_seq IS 'Number of the last audit event of this tag, without gaps.';
COMMENT ON COLUMN idgen.segment.version IS 'Raised by every change of the definition.';
COMMENT ON COLUMN idgen.segment.needs_burn IS 'The row came by COPY, restore or replication, or its max_id was changed by hand: the safety burn is passed over before the next grant.';
COMMENT ON COLUMN idgen.segment.created_at IS 'When it was made.';
COMMENT ON COLUMN idgen.segment.granted_at IS 'When the last range was granted.';
COMMENT ON COLUMN idgen.segment.dropped_at IS 'Not NULL: a tombstone, kept so that its ids never come back.';
COMMENT ON COLUMN idgen.segment.rate_per_minute IS 'Ids granted per minute: the highest of late, halved for every quarter of an hour without such a rate.';
COMMENT ON COLUMN idgen.segment.rate_since_ms IS 'When the open window of that measure began, Unix ms; 0: not yet.';
COMMENT ON COLUMN idgen.segment.rate_since_id IS 'max_id at that time.';
COMMENT ON COLUMN idgen.segment.safety_burn IS 'Ids to pass over when ranges may have been granted that this database does not know of; NULL: by the rate (idgen.safety_burn_time).';
COMMENT ON COLUMN idgen.segment.mark IS 'idgen.authority.mark at the last grant; another one: the safety burn is passed over before the next grant.';
COMMENT ON COLUMN idgen.segment.leased IS 'The last grant was made under a lease (idgen.authority = leased).';

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
COMMENT ON COLUMN idgen.audit_event.kind IS 'segment.create, segment.grant, segment.burn, segment.alter, segment.seek, segment.drop, segment.adopt, segment.release, segment.join, segment.leave, or segment.open (a range that was granted and may be partly unused, because the server has stopped: nothing of it is drawn any more); of the whole space (tag empty): authority.burn, authority.adopt, authority.promote, space.join, space.leave.';
COMMENT ON COLUMN idgen.audit_event.space_id IS 'Tag space; (space_id, tag) is the key of everybody downstream.';
COMMENT ON COLUMN idgen.audit_event.tag IS 'The tag.';
COMMENT ON COLUMN idgen.audit_event.tag_seq IS 'Counts the events of the tag in this database by one, taken under its row lock; masters that share a space count each for itself (source_id).';
COMMENT ON COLUMN idgen.audit_event.lo IS 'First id of a granted, burned or skipped range, all of which is this database''s. Where several masters share the space a grant has an event for each run of ids; a burn, a seek or a drop has own_from and own_to in its payload instead, because ids of others lie between.';
COMMENT ON COLUMN idgen.audit_event.hi IS 'Last id of it.';
COMMENT ON COLUMN idgen.audit_event.token_epoch IS 'Fencing token of a leased authority (idgen.authority): the epoch; NULL: authority was local.';
COMMENT ON COLUMN idgen.audit_event.token_revision IS '... and the revision of the lease store.';
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

CREATE FUNCTION idgen.segment_arrives()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'idgen_segment_arrives';
COMMENT ON FUNCTION idgen.segment_arrives() IS 'Trigger: a row that COPY, a restore, logical replication or a person writes never takes max_id down, and has to burn before it serves.';

-- Always: the process that applies a logical replica's changes fires no other triggers.
CREATE TRIGGER segment_arrives BEFORE INSERT OR UPDATE ON idgen.segment
FOR EACH ROW EXECUTE FUNCTION idgen.segment_arrives();
COMMENT ON TRIGGER segment_arrives ON idgen.segment IS 'See idgen.segment_arrives().';
ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_arrives;

CREATE FUNCTION idgen.segment_stays()
RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'segment tags are never removed'
        USING ERRCODE = 'IG019',
              DETAIL = 'Their rows keep ids from being granted a second time.',
              HINT = 'End a tag that is not needed: SELECT idgen_drop_segment(''tag'').';
END
$$;
COMMENT ON FUNCTION idgen.segment_stays() IS 'Trigger: refuses with IG019: a dropped tag leaves its row, so that one that is made again begins above it.';
CREATE TRIGGER segment_stays BEFORE DELETE OR TRUNCATE ON idgen.segment
FOR EACH STATEMENT EXECUTE FUNCTION idgen.segment_stays();
COMMENT ON TRIGGER segment_stays ON idgen.segment IS 'See idgen.segment_stays().';
ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_stays;

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
    limit_id bigint DEFAULT 9223372036854775807, fetch_limit integer DEFAULT NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_create_segment';
COMMENT ON FUNCTION idgen_create_segment(text, bigint, integer, integer, bigint, integer) IS
'Make a segment tag; it belongs to the caller. tag: 1 to 200 bytes. start_id: first id, at least 1. step, max_step: least and most ids per database write, 1 to 1,000,000, step <= max_step. limit_id: last id, at least start_id. Can be used at once in the same transaction. Errors: IG016 the tag exists, 22023 an argument out of range, 22004 NULL, IG012 in recovery; in a database that has no day tables for its events yet also IG011 not preloaded, IG007 no refill worker made them, IG017 too many tags.';

-- Unsafe, as nextval() is: looking a tag up is a statement of its own, which no parallel query allows, its leader neither.
CREATE FUNCTION idgen_segment(tag text)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_segment';
COMMENT ON FUNCTION idgen_segment(text) IS
'The next id of a segment tag: dense, never issued twice within the tag''s space, not given back by a rollback, in rising order per server but for waits. Errors: IG005 unknown tag, IG006 exhausted, IG007 no new range within idgen.segment_wait_ms, IG008 rate limited, IG011 not preloaded, IG012 in recovery, IG013 no right, IG017 too many tags, IG024 this transaction has changed the tag, IG030 no authority, IG031 a copy, IG032 the safety burn would pass the limit, IG033 waits for what topic and archive know, IG035 not cut in the stripes of its space, 22004 NULL.';

CREATE FUNCTION idgen.segment_buffers(
    OUT segment_id uuid, OUT space_id uuid, OUT remaining bigint, OUT step integer,
    OUT refills bigint, OUT refill_failures bigint, OUT refill_ms double precision,
    OUT refill_ms_max double precision, OUT refill_ms_mean double precision,
    OUT granted_ms_ago bigint, OUT wanted boolean, OUT blocker text, OUT blocker_pid integer, OUT blocker_xid bigint,
    OUT ids bigint, OUT ids_per_s double precision, OUT seconds_left double precision, OUT burned text,
    OUT fetches_per_minute integer, OUT warning text)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 100
AS 'MODULE_PATHNAME', 'idgen_segment_buffers';
COMMENT ON FUNCTION idgen.segment_buffers() IS
'What idgen.segments shows of shared memory: one row for each tag that was used since the server started and that the caller may see there, those that it owns, or all for members of pg_monitor. ids: drawn since idgen.reset_stats(); blocker_xid: transaction of a prepared blocker; burned: JSON. The other columns are those of the view. Without shared memory: no rows.';

CREATE FUNCTION idgen.grant_segment(tag text, grantee text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_grant_segment';
COMMENT ON FUNCTION idgen.grant_segment(text, text) IS
'Let a role (or public) draw from a tag. Only for the tag''s owner. Errors: IG005 unknown tag, IG013 not the owner, 42704 no such role.';
