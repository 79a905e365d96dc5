-- The embedded lease store: the tables of a *coordinator* database, read and written by daemons only.
-- Never dumped (a restored store must not come back to life), hence not registered for pg_dump.

CREATE TABLE idgen.cell (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    cell_id           uuid    NOT NULL,
    worker_format     text    NOT NULL,
    epoch             bigint  NOT NULL CHECK (epoch >= 0),
    epoch_nonce       uuid    NOT NULL,
    epoch_since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    epoch_known       bigint  NOT NULL DEFAULT 0,
    epoch_known_since timestamptz NOT NULL DEFAULT 'epoch',
    formats_known     text[]  NOT NULL DEFAULT '{}',
    min_floor_ms      bigint  NOT NULL DEFAULT 0,
    shard_min_floor_ms bigint NOT NULL DEFAULT 0,
    revision          bigint  NOT NULL DEFAULT 0,
    sealed_reason     text,
    sealed_at         timestamptz,
    approvals_needed  integer CHECK (approvals_needed IN (1, 2)),
    system_identifier bigint  NOT NULL,
    timeline          integer NOT NULL,
    database_oid      oid     NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    changes           bigint  NOT NULL DEFAULT 0
);
COMMENT ON TABLE idgen.cell IS 'Embedded lease store: the one row that names the cell. Made by the first daemon that uses this database as its store; never dumped.';
COMMENT ON COLUMN idgen.cell.one IS 'Always true: there is at most one row.';
COMMENT ON COLUMN idgen.cell.cell_id IS 'Snowflakes are unique within one cell and one format.';
COMMENT ON COLUMN idgen.cell.worker_format IS 'Format of the ids minted by worker identities, over time: FORMAT or FORMAT; FORMAT from UNIXMS. A property of the cell, never of a server; changed by idgenctl format switch only, which makes sure that nobody mints at that moment unknowing.';
COMMENT ON COLUMN idgen.cell.epoch IS 'Rises after every restore; its parity names the half of the worker pool that may be leased.';
COMMENT ON COLUMN idgen.cell.epoch_nonce IS 'Random name of this epoch, compared by value: two histories may reach the same number.';
COMMENT ON COLUMN idgen.cell.epoch_since IS 'When this epoch began.';
COMMENT ON COLUMN idgen.cell.epoch_known IS 'The highest epoch that a daemon knew of when it sealed the cell: the store may have been restored to an earlier one. The next epoch rises above it.';
COMMENT ON COLUMN idgen.cell.epoch_known_since IS 'When that epoch began.';
COMMENT ON COLUMN idgen.cell.formats_known IS 'The plans of formats, as in worker_format, that daemons knew of when they sealed the cell or found it sealed: the store may have been restored to a time before a switch. The next epoch goes on with the furthest of them.';
COMMENT ON COLUMN idgen.cell.min_floor_ms IS 'No window of a worker begins below this Unix ms.';
COMMENT ON COLUMN idgen.cell.shard_min_floor_ms IS 'No window of a shard begins below this Unix ms. An advance of the epoch raises it, because shards of both epochs are the same.';
COMMENT ON COLUMN idgen.cell.revision IS 'Counts every change of this store; the second part of a fencing token.';
COMMENT ON COLUMN idgen.cell.sealed_reason IS 'NULL: open. Otherwise nothing is granted or renewed until somebody runs idgenctl epoch advance, and this says why.';
COMMENT ON COLUMN idgen.cell.sealed_at IS 'When the reason was written: idgenctl epoch advance gives every daemon the time to tell which epochs it knows.';
COMMENT ON COLUMN idgen.cell.approvals_needed IS 'How many different people have to approve an advance of the epoch. NULL: two as soon as there are two approvers, else one. Changed by idgenctl approvals need only.';
COMMENT ON COLUMN idgen.cell.system_identifier IS 'Identity of the database that may serve this store: system identifier,';
COMMENT ON COLUMN idgen.cell.timeline IS '... timeline,';
COMMENT ON COLUMN idgen.cell.database_oid IS '... and database. A restore by dump, a promoted standby, a recovered copy or a template clone does not match and is refused; a plain file copy started beside its original cannot be told from it.';
COMMENT ON COLUMN idgen.cell.created_at IS 'When the cell was made.';
COMMENT ON COLUMN idgen.cell.changes IS 'Counts the rows of idgen.lease_change: position of the last one.';

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
    version        bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, identity),
    CHECK ((holder IS NULL) = (token_revision IS NULL)
       AND (holder IS NULL) = (token_epoch IS NULL)
       AND (holder IS NULL) = (boot_id IS NULL)
       AND (holder IS NULL) = (expires_at IS NULL)
       AND (holder IS NULL) = (holder_name IS NULL))
)
-- Every row of a lease is updated at each renewal, no indexed column of it: its next version finds room on its page.
WITH (fillfactor = 40);
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
COMMENT ON COLUMN idgen.lease.version IS 'Counts the changes of this row, whoever makes them: with idgen.lease_change it shows whether one is missing.';

CREATE UNLOGGED TABLE idgen.beacon (
    instance  uuid   PRIMARY KEY,
    boot_id   uuid   NOT NULL,
    wall_ms   bigint NOT NULL,
    noted_at  timestamptz NOT NULL
)
WITH (fillfactor = 40);
COMMENT ON TABLE idgen.beacon IS 'Embedded lease store: what the clocks of the servers of this cell show, so that each daemon can compare its own with the others. Unlogged: a reading that is older than a minute says nothing. Never dumped.';
COMMENT ON COLUMN idgen.beacon.instance IS 'Instance id of the daemon that wrote it.';
COMMENT ON COLUMN idgen.beacon.boot_id IS 'The shared memory of its server.';
COMMENT ON COLUMN idgen.beacon.wall_ms IS 'What the wall clock of that server showed, Unix ms,';
COMMENT ON COLUMN idgen.beacon.noted_at IS '... when the clock of this database showed this.';

CREATE TABLE idgen.epoch (
    epoch      bigint      PRIMARY KEY CHECK (epoch > 0),
    began_at   timestamptz NOT NULL,
    store      text        NOT NULL,
    changed_by text        NOT NULL,
    reason     text        NOT NULL
);
COMMENT ON TABLE idgen.epoch IS 'Embedded lease store: every advance of the epoch, as idgenctl epoch advance has recorded it. Never dumped.';
COMMENT ON COLUMN idgen.epoch.epoch IS 'The epoch that began.';
COMMENT ON COLUMN idgen.epoch.began_at IS 'When, by this database''s clock.';
COMMENT ON COLUMN idgen.epoch.store IS 'The store that it was advanced in: postgres/SYSTEM/TIMELINE/DATABASE.';
COMMENT ON COLUMN idgen.epoch.changed_by IS 'Who did it.';
COMMENT ON COLUMN idgen.epoch.reason IS 'Why.';

CREATE FUNCTION idgen.store_stays()
RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'rows of the lease store are never removed'
        USING ERRCODE = 'IG019',
              DETAIL = 'They keep the next holder of an identity above the ids of the last.',
              HINT = 'Point idgend at another database for another cell.';
END
$$;
COMMENT ON FUNCTION idgen.store_stays() IS 'Trigger: refuses with IG019, because a lease store that has lost rows grants windows a second time.';

CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.cell
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.cell IS 'See idgen.store_stays().';
CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.lease
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.lease IS 'See idgen.store_stays().';
CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.epoch
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.epoch IS 'See idgen.store_stays().';

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
