-- Lease events. First the log of the embedded lease store: what its rows were and are, written in the transaction that
-- changes them, by triggers that nothing but their owner switches off. Then the trail that idgend makes of a store's log,
-- of this one or of an etcd. Neither is ever dumped: they are of a store, and a copy is another one.

CREATE TABLE idgen.lease_change (
    position   bigint      PRIMARY KEY CHECK (position > 0),
    revision   bigint      NOT NULL,
    at         timestamptz NOT NULL,
    tx         xid8        NOT NULL,
    changed_by name        NOT NULL,
    of_table   name        NOT NULL,
    before     jsonb,
    after      jsonb,
    CHECK (before IS NOT NULL OR after IS NOT NULL)
);
COMMENT ON TABLE idgen.lease_change IS 'Embedded lease store: its log. One row per change of a row of the store, but for renewals of leases and raises of ceilings, which the rows count themselves (version). Written in the transaction of the change. Kept for a week; never dumped.';
COMMENT ON COLUMN idgen.lease_change.position IS 'Counts the changes, without gaps: taken under the lock of idgen.cell, so in the order of their commits.';
COMMENT ON COLUMN idgen.lease_change.revision IS 'Revision of the store then.';
COMMENT ON COLUMN idgen.lease_change.at IS 'When, by this database''s clock.';
COMMENT ON COLUMN idgen.lease_change.tx IS 'In which transaction.';
COMMENT ON COLUMN idgen.lease_change.changed_by IS 'Session user.';
COMMENT ON COLUMN idgen.lease_change.of_table IS 'Table of the row, in schema idgen.';
COMMENT ON COLUMN idgen.lease_change.before IS 'The row before; NULL: there was none.';
COMMENT ON COLUMN idgen.lease_change.after IS 'The row after; NULL: it is gone.';
CREATE INDEX lease_change_at ON idgen.lease_change (at);
COMMENT ON INDEX idgen.lease_change_at IS 'For whoever removes what is older than a week.';

CREATE FUNCTION idgen.store_counts()
RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.version := CASE TG_OP WHEN 'UPDATE' THEN OLD.version + 1 ELSE 1 END;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idgen.store_counts() IS 'Trigger: counts the changes of a row of the lease store.';

CREATE FUNCTION idgen.store_changed()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC'
AS $$
DECLARE
    befores jsonb[];
    afters  jsonb[];
    logged  record;
BEGIN
    -- Both arrays are of the rows in the order of their keys; a row that there was not, or is not any more, is NULL.
    CASE
    WHEN TG_LEVEL = 'ROW' THEN
        befores := ARRAY[CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END];
        afters := ARRAY[CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END];
    WHEN TG_OP = 'INSERT' THEN
        SELECT array_agg(NULL::jsonb), array_agg(b.held ORDER BY b.held -> 'kind', b.held -> TG_ARGV[0])
          INTO befores, afters FROM (SELECT to_jsonb(became) AS held FROM became) b;
    WHEN TG_OP = 'DELETE' THEN
        SELECT array_agg(w.held ORDER BY w.held -> 'kind', w.held -> TG_ARGV[0]), array_agg(NULL::jsonb)
          INTO befores, afters FROM (SELECT to_jsonb(was) AS held FROM was) w;
    WHEN TG_TABLE_NAME = 'lease' THEN
        -- A renewal raises the ceiling and the expiry, and is counted only.
        SELECT array_agg(to_jsonb(w) ORDER BY kind, identity), array_agg(to_jsonb(b) ORDER BY kind, identity)
          INTO befores, afters
          FROM was w FULL JOIN became b USING (kind, identity)
         WHERE (w.generation, w.exact, w.holder, w.holder_name, w.token_epoch, w.token_revision, w.boot_id)
               IS DISTINCT FROM
               (b.generation, b.exact, b.holder, b.holder_name, b.token_epoch, b.token_revision, b.boot_id)
            OR b.ceiling_ms < w.ceiling_ms OR b.holder IS NULL;
    ELSE
        SELECT array_agg(w.held ORDER BY key), array_agg(b.held ORDER BY key)
          INTO befores, afters
          FROM (SELECT r AS held, jsonb_build_array(r -> 'kind', r -> TG_ARGV[0]) AS key
                  FROM (SELECT to_jsonb(was) AS r FROM was) s) w
          FULL JOIN (SELECT r AS held, jsonb_build_array(r -> 'kind', r -> TG_ARGV[0]) AS key
                       FROM (SELECT to_jsonb(became) AS r FROM became) s) b USING (key);
    END CASE;
    IF cardinality(afters) > 0 THEN
        -- Once for all rows: each update of the cell's row in one transaction has to pass over those before it. Locks that
        -- row, as every operation of a daemon has done before. A cell that was made anew goes on above.
        UPDATE idgen.cell
           SET changes = greatest(changes, (SELECT max(l.position) FROM idgen.lease_change l)) + cardinality(afters)
        RETURNING changes - cardinality(afters) AS before, revision INTO logged;
        INSERT INTO idgen.lease_change (position, revision, at, tx, changed_by, of_table, before, after)
        SELECT logged.before + r.n, logged.revision, clock_timestamp(), pg_current_xact_id(), session_user, TG_TABLE_NAME,
               r.before, r.after
          FROM unnest(befores, afters) WITH ORDINALITY AS r(before, after, n)
         WHERE logged.before IS NOT NULL
         ORDER BY r.n;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idgen.store_changed() IS 'Trigger: writes down in idgen.lease_change what a row of the lease store, or each row of a statement, was and is.';
REVOKE ALL ON FUNCTION idgen.store_changed() FROM PUBLIC;

CREATE TRIGGER store_counts BEFORE INSERT OR UPDATE ON idgen.lease
FOR EACH ROW EXECUTE FUNCTION idgen.store_counts();
COMMENT ON TRIGGER store_counts ON idgen.lease IS 'See idgen.store_counts().';
ALTER TABLE idgen.lease ENABLE ALWAYS TRIGGER store_counts;
CREATE TRIGGER store_counts BEFORE INSERT OR UPDATE ON idgen.named_lease
FOR EACH ROW EXECUTE FUNCTION idgen.store_counts();
COMMENT ON TRIGGER store_counts ON idgen.named_lease IS 'See idgen.store_counts().';
ALTER TABLE idgen.named_lease ENABLE ALWAYS TRIGGER store_counts;

-- One statement may change every row of these.
CREATE TRIGGER store_inserted AFTER INSERT ON idgen.lease
REFERENCING NEW TABLE AS became
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('identity');
COMMENT ON TRIGGER store_inserted ON idgen.lease IS 'See idgen.store_changed().';
ALTER TABLE idgen.lease ENABLE ALWAYS TRIGGER store_inserted;
CREATE TRIGGER store_updated AFTER UPDATE ON idgen.lease
REFERENCING OLD TABLE AS was NEW TABLE AS became
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('identity');
COMMENT ON TRIGGER store_updated ON idgen.lease IS 'See idgen.store_changed(). Not for renewals.';
ALTER TABLE idgen.lease ENABLE ALWAYS TRIGGER store_updated;
CREATE TRIGGER store_deleted AFTER DELETE ON idgen.lease
REFERENCING OLD TABLE AS was
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('identity');
COMMENT ON TRIGGER store_deleted ON idgen.lease IS 'See idgen.store_changed().';
ALTER TABLE idgen.lease ENABLE ALWAYS TRIGGER store_deleted;
CREATE TRIGGER store_inserted AFTER INSERT ON idgen.lease_order
REFERENCING NEW TABLE AS became
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('identity');
COMMENT ON TRIGGER store_inserted ON idgen.lease_order IS 'See idgen.store_changed().';
ALTER TABLE idgen.lease_order ENABLE ALWAYS TRIGGER store_inserted;
CREATE TRIGGER store_updated AFTER UPDATE ON idgen.lease_order
REFERENCING OLD TABLE AS was NEW TABLE AS became
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('identity');
COMMENT ON TRIGGER store_updated ON idgen.lease_order IS 'See idgen.store_changed().';
ALTER TABLE idgen.lease_order ENABLE ALWAYS TRIGGER store_updated;
CREATE TRIGGER store_deleted AFTER DELETE ON idgen.lease_order
REFERENCING OLD TABLE AS was
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('identity');
COMMENT ON TRIGGER store_deleted ON idgen.lease_order IS 'See idgen.store_changed().';
ALTER TABLE idgen.lease_order ENABLE ALWAYS TRIGGER store_deleted;
CREATE TRIGGER store_inserted AFTER INSERT ON idgen.shard_assignment
REFERENCING NEW TABLE AS became
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('shard');
COMMENT ON TRIGGER store_inserted ON idgen.shard_assignment IS 'See idgen.store_changed().';
ALTER TABLE idgen.shard_assignment ENABLE ALWAYS TRIGGER store_inserted;
CREATE TRIGGER store_updated AFTER UPDATE ON idgen.shard_assignment
REFERENCING OLD TABLE AS was NEW TABLE AS became
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('shard');
COMMENT ON TRIGGER store_updated ON idgen.shard_assignment IS 'See idgen.store_changed().';
ALTER TABLE idgen.shard_assignment ENABLE ALWAYS TRIGGER store_updated;
CREATE TRIGGER store_deleted AFTER DELETE ON idgen.shard_assignment
REFERENCING OLD TABLE AS was
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_changed('shard');
COMMENT ON TRIGGER store_deleted ON idgen.shard_assignment IS 'See idgen.store_changed().';
ALTER TABLE idgen.shard_assignment ENABLE ALWAYS TRIGGER store_deleted;

CREATE TRIGGER store_changed AFTER INSERT OR DELETE ON idgen.named_lease
FOR EACH ROW EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed ON idgen.named_lease IS 'See idgen.store_changed().';
ALTER TABLE idgen.named_lease ENABLE ALWAYS TRIGGER store_changed;
CREATE TRIGGER store_changed_after AFTER UPDATE ON idgen.named_lease
FOR EACH ROW
WHEN ((NEW.name, NEW.generation, NEW.holder, NEW.holder_name, NEW.token_epoch, NEW.token_revision, NEW.boot_id)
      IS DISTINCT FROM
      (OLD.name, OLD.generation, OLD.holder, OLD.holder_name, OLD.token_epoch, OLD.token_revision, OLD.boot_id))
EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed_after ON idgen.named_lease IS 'See idgen.store_changed(). Not for renewals.';
ALTER TABLE idgen.named_lease ENABLE ALWAYS TRIGGER store_changed_after;

CREATE TRIGGER store_changed AFTER DELETE ON idgen.named_ceiling
FOR EACH ROW EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed ON idgen.named_ceiling IS 'See idgen.store_changed(). Not for what makes or raises a ceiling.';
ALTER TABLE idgen.named_ceiling ENABLE ALWAYS TRIGGER store_changed;
CREATE TRIGGER store_changed_after AFTER UPDATE ON idgen.named_ceiling
FOR EACH ROW WHEN (NEW.ceiling < OLD.ceiling OR (NEW.name, NEW.key) IS DISTINCT FROM (OLD.name, OLD.key))
EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed_after ON idgen.named_ceiling IS 'See idgen.store_changed(). Not for what raises a ceiling.';
ALTER TABLE idgen.named_ceiling ENABLE ALWAYS TRIGGER store_changed_after;

CREATE TRIGGER store_changed AFTER INSERT OR UPDATE OR DELETE ON idgen.stripe
FOR EACH ROW EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed ON idgen.stripe IS 'See idgen.store_changed().';
ALTER TABLE idgen.stripe ENABLE ALWAYS TRIGGER store_changed;
CREATE TRIGGER store_changed AFTER INSERT OR UPDATE OR DELETE ON idgen.request
FOR EACH ROW EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed ON idgen.request IS 'See idgen.store_changed().';
ALTER TABLE idgen.request ENABLE ALWAYS TRIGGER store_changed;
CREATE TRIGGER store_changed AFTER INSERT OR UPDATE OR DELETE ON idgen.server_drain
FOR EACH ROW EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed ON idgen.server_drain IS 'See idgen.store_changed().';
ALTER TABLE idgen.server_drain ENABLE ALWAYS TRIGGER store_changed;
CREATE TRIGGER store_changed AFTER INSERT OR UPDATE OR DELETE ON idgen.epoch
FOR EACH ROW EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed ON idgen.epoch IS 'See idgen.store_changed().';
ALTER TABLE idgen.epoch ENABLE ALWAYS TRIGGER store_changed;

CREATE TRIGGER store_changed AFTER INSERT OR DELETE ON idgen.cell
FOR EACH ROW EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed ON idgen.cell IS 'See idgen.store_changed().';
ALTER TABLE idgen.cell ENABLE ALWAYS TRIGGER store_changed;
CREATE TRIGGER store_changed_after AFTER UPDATE ON idgen.cell
FOR EACH ROW
WHEN ((NEW.cell_id, NEW.worker_format, NEW.epoch, NEW.epoch_nonce, NEW.sealed_reason, NEW.approvals_needed, NEW.system_identifier, NEW.timeline, NEW.database_oid)
      IS DISTINCT FROM
      (OLD.cell_id, OLD.worker_format, OLD.epoch, OLD.epoch_nonce, OLD.sealed_reason, OLD.approvals_needed, OLD.system_identifier, OLD.timeline, OLD.database_oid))
EXECUTE FUNCTION idgen.store_changed();
COMMENT ON TRIGGER store_changed_after ON idgen.cell IS 'See idgen.store_changed(). Not for its counters.';
ALTER TABLE idgen.cell ENABLE ALWAYS TRIGGER store_changed_after;

CREATE TABLE idgen.lease_trail (
    cell_id        uuid   PRIMARY KEY,
    store          text   NOT NULL,
    branch         bigint NOT NULL CHECK (branch >= 0),
    cursor         bigint NOT NULL CHECK (cursor >= 0),
    revision       bigint NOT NULL CHECK (revision >= 0),
    head_seq       bigint NOT NULL CHECK (head_seq >= 0),
    head_hash      bytea  NOT NULL CHECK (octet_length(head_hash) = 32),
    pruned_seq     bigint NOT NULL DEFAULT 0 CHECK (pruned_seq BETWEEN 0 AND head_seq),
    pruned_hash    bytea  NOT NULL DEFAULT decode(repeat('00', 32), 'hex') CHECK (octet_length(pruned_hash) = 32),
    token_epoch    bigint NOT NULL,
    token_revision bigint NOT NULL,
    followed_by    text   NOT NULL,
    followed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE idgen.lease_trail IS 'Lease events: one row per cell whose trail is in this database: how far it has come, and where its chain of hashes begins and ends. Never dumped.';
COMMENT ON COLUMN idgen.lease_trail.cell_id IS 'The cell.';
COMMENT ON COLUMN idgen.lease_trail.store IS 'The store that is followed: etcd/CLUSTER or postgres/SYSTEM/TIMELINE/DATABASE.';
COMMENT ON COLUMN idgen.lease_trail.branch IS 'Counts how often the store was replaced by another one, or by an older state of itself: revisions begin anew with each.';
COMMENT ON COLUMN idgen.lease_trail.cursor IS 'Everything up to here is in the trail: a revision of etcd, or a position of idgen.lease_change.';
COMMENT ON COLUMN idgen.lease_trail.revision IS 'Revision of the store there.';
COMMENT ON COLUMN idgen.lease_trail.head_seq IS 'The last event of the trail,';
COMMENT ON COLUMN idgen.lease_trail.head_hash IS '... and its hash. Who notes both elsewhere notices a trail that was made anew.';
COMMENT ON COLUMN idgen.lease_trail.pruned_seq IS 'The last event that was removed because of its age,';
COMMENT ON COLUMN idgen.lease_trail.pruned_hash IS '... and its hash: what is left of the chain begins with it.';
COMMENT ON COLUMN idgen.lease_trail.token_epoch IS 'Fencing token of the lease that the last one who wrote held: its epoch,';
COMMENT ON COLUMN idgen.lease_trail.token_revision IS '... and its revision. Whoever has an older one is refused.';
COMMENT ON COLUMN idgen.lease_trail.followed_by IS 'Name of the idgend that wrote last.';
COMMENT ON COLUMN idgen.lease_trail.followed_at IS 'When it did.';

CREATE TABLE idgen.lease_event (
    cell_id  uuid   NOT NULL,
    seq      bigint NOT NULL CHECK (seq > 0),
    branch   bigint NOT NULL,
    position bigint NOT NULL,
    revision bigint NOT NULL,
    at       timestamptz NOT NULL,
    kind     text   NOT NULL,
    subject  text COLLATE "C" NOT NULL,
    version  bigint NOT NULL,
    steps    bigint NOT NULL,
    finding  text,
    detail   json   NOT NULL,
    hash     bytea  NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (cell_id, seq),
    UNIQUE (cell_id, branch, position, subject, kind)
);
COMMENT ON TABLE idgen.lease_event IS 'Lease events: the trail, as idgend derives it from the log of the lease store. Rows are never changed, and removed only by their age (idgenctl events). Look at it by idgenctl events list, and prove it by idgenctl events verify. Never dumped.';
COMMENT ON COLUMN idgen.lease_event.cell_id IS 'Of which cell.';
COMMENT ON COLUMN idgen.lease_event.seq IS 'Counts the events of the cell, without gaps.';
COMMENT ON COLUMN idgen.lease_event.branch IS 'In which history of the store: see idgen.lease_trail.branch.';
COMMENT ON COLUMN idgen.lease_event.position IS 'Where in the log of the store: a revision of etcd, or a position of idgen.lease_change.';
COMMENT ON COLUMN idgen.lease_event.revision IS 'Revision of the store. Of a grant it is the second part of its token.';
COMMENT ON COLUMN idgen.lease_event.at IS 'When: by the clock of an embedded store; when it was read from an etcd.';
COMMENT ON COLUMN idgen.lease_event.kind IS 'What happened: granted, released, expired, removed, revoked, force_released, asked and request_used (what people approve), assigned (a shard to a server), drained and resumed (of servers), taken and given_back (of names), sealed, epoch_advanced, formats_switched, approvals_set, stripe_claimed, stripe_joined, stripe_released, changed, deleted, cell_made; and of the trail itself began, gap, lost, store_replaced, unexplained. Renewals are no events: see steps.';
COMMENT ON COLUMN idgen.lease_event.subject IS 'To what: worker 5, shard 7, name lock/settlement, server db-a, cell, stripe SPACE/0, log.';
COMMENT ON COLUMN idgen.lease_event.version IS 'How often the key or row of the subject was changed, with this change; 0: it is gone, or the store does not count.';
COMMENT ON COLUMN idgen.lease_event.steps IS 'How many changes of it there were since its last event, with this one; the others were renewals.';
COMMENT ON COLUMN idgen.lease_event.finding IS 'Why somebody should look at it; NULL: it is in order.';
COMMENT ON COLUMN idgen.lease_event.detail IS 'What else is to be known, by kind. As text it is part of the hash.';
COMMENT ON COLUMN idgen.lease_event.hash IS 'SHA-256 over the hash of the event before and all columns of this one.';
CREATE INDEX lease_event_subject ON idgen.lease_event (cell_id, subject, seq);
COMMENT ON INDEX idgen.lease_event_subject IS 'For idgenctl events list --identity.';

CREATE TABLE idgen.lease_event_key (
    cell_id    uuid   NOT NULL,
    key        text COLLATE "C" NOT NULL,
    made       bigint NOT NULL,
    version    bigint NOT NULL,
    changed    bigint NOT NULL,
    value      text   NOT NULL,
    told       bigint NOT NULL,
    read_at    timestamptz NOT NULL,
    suspect    uuid,
    suspect_position bigint,
    suspect_revision bigint,
    suspect_at timestamptz,
    PRIMARY KEY (cell_id, key),
    CHECK ((suspect IS NULL) = (suspect_at IS NULL)
       AND (suspect IS NULL) = (suspect_position IS NULL)
       AND (suspect IS NULL) = (suspect_revision IS NULL))
)
WITH (fillfactor = 70);
COMMENT ON TABLE idgen.lease_event_key IS 'Lease events: each key or row of the store as it was when the trail saw it last, so that whoever takes over can tell whether a change is missing. Belongs to idgend. Never dumped.';
COMMENT ON COLUMN idgen.lease_event_key.cell_id IS 'Of which cell.';
COMMENT ON COLUMN idgen.lease_event_key.key IS 'Name below the prefix of an etcd; the rows of an embedded store have the same.';
COMMENT ON COLUMN idgen.lease_event_key.made IS 'Revision that the key was made at.';
COMMENT ON COLUMN idgen.lease_event_key.version IS 'How often it was changed since.';
COMMENT ON COLUMN idgen.lease_event_key.changed IS 'Revision of its last change.';
COMMENT ON COLUMN idgen.lease_event_key.value IS 'What is in it.';
COMMENT ON COLUMN idgen.lease_event_key.told IS 'Its version at its last event.';
COMMENT ON COLUMN idgen.lease_event_key.read_at IS 'When its last change was read.';
COMMENT ON COLUMN idgen.lease_event_key.suspect IS 'Its holder, this instance of a daemon, was removed before its time, and nothing explains it yet;';
COMMENT ON COLUMN idgen.lease_event_key.suspect_position IS '... where in the log,';
COMMENT ON COLUMN idgen.lease_event_key.suspect_revision IS '... at which revision,';
COMMENT ON COLUMN idgen.lease_event_key.suspect_at IS '... and when.';

CREATE FUNCTION idgen.trail_stays()
RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'lease_event' THEN
        IF OLD.seq <= (SELECT t.pruned_seq FROM idgen.lease_trail t WHERE t.cell_id = OLD.cell_id) THEN
            RETURN OLD;
        END IF;
    ELSIF TG_OP = 'DELETE' THEN
        IF OLD.at < clock_timestamp() - interval '1 day' THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'the trail of lease events is not changed'
        USING ERRCODE = 'IG060',
              DETAIL = format('%s of idgen.%s refused.', TG_OP, TG_TABLE_NAME),
              HINT = 'Events are removed by their age: set events.keep_days of idgend.';
END
$$;
COMMENT ON FUNCTION idgen.trail_stays() IS 'Trigger: refuses with IG060 whatever would change the trail of lease events or the log that it is made of, but the removal of what is pruned, or older than a day.';

CREATE TRIGGER trail_stays BEFORE UPDATE OR DELETE ON idgen.lease_event
FOR EACH ROW EXECUTE FUNCTION idgen.trail_stays();
COMMENT ON TRIGGER trail_stays ON idgen.lease_event IS 'See idgen.trail_stays().';
ALTER TABLE idgen.lease_event ENABLE ALWAYS TRIGGER trail_stays;
CREATE TRIGGER trail_is_not_emptied BEFORE TRUNCATE ON idgen.lease_event
FOR EACH STATEMENT EXECUTE FUNCTION idgen.trail_stays();
COMMENT ON TRIGGER trail_is_not_emptied ON idgen.lease_event IS 'See idgen.trail_stays().';
ALTER TABLE idgen.lease_event ENABLE ALWAYS TRIGGER trail_is_not_emptied;
CREATE TRIGGER trail_stays BEFORE UPDATE OR DELETE ON idgen.lease_change
FOR EACH ROW EXECUTE FUNCTION idgen.trail_stays();
COMMENT ON TRIGGER trail_stays ON idgen.lease_change IS 'See idgen.trail_stays().';
ALTER TABLE idgen.lease_change ENABLE ALWAYS TRIGGER trail_stays;
CREATE TRIGGER trail_is_not_emptied BEFORE TRUNCATE ON idgen.lease_change
FOR EACH STATEMENT EXECUTE FUNCTION idgen.trail_stays();
COMMENT ON TRIGGER trail_is_not_emptied ON idgen.lease_change IS 'See idgen.trail_stays().';
ALTER TABLE idgen.lease_change ENABLE ALWAYS TRIGGER trail_is_not_emptied;
