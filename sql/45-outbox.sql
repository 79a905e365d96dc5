-- The outbox: who hands the events of this database on, how far that has come, and when the table of a day may go. idgend
-- reads idgen.audit_event and idgen.lease_event and marks; nothing here is in the way of whoever writes events.

CREATE TABLE idgen.drain_lease (
    stream       text PRIMARY KEY CHECK (stream IN ('segment', 'lease', 'audit')),
    epoch        bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    holder       uuid,
    holder_name  text,
    expires      timestamptz NOT NULL DEFAULT 'epoch',
    watermark_tx xid8,
    watermark_at timestamptz,
    asked        bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE idgen.drain_lease IS 'Outbox and audits: which idgend hands events on, or audits, one at a time. Whoever takes over raises the epoch, and what is marked under an older one is refused. A row, not a lock of a session: it works through a pooler. Never dumped.';
COMMENT ON COLUMN idgen.drain_lease.stream IS 'segment: idgen.audit_event; lease: idgen.lease_event; audit: nothing is handed on, the audits of this database are run.';
COMMENT ON COLUMN idgen.drain_lease.epoch IS 'Raised by one whenever it is taken. A message carries it in its header.';
COMMENT ON COLUMN idgen.drain_lease.holder IS 'Instance of idgend; NULL: given back.';
COMMENT ON COLUMN idgen.drain_lease.holder_name IS 'Its name, for people.';
COMMENT ON COLUMN idgen.drain_lease.expires IS 'From then on anybody may take it, by this server''s clock.';
COMMENT ON COLUMN idgen.drain_lease.watermark_tx IS 'Completeness: all events of transactions below have been handed on. Never a gate of handing on.';
COMMENT ON COLUMN idgen.drain_lease.watermark_at IS 'When that was found.';
COMMENT ON COLUMN idgen.drain_lease.asked IS 'Raised when somebody has asked for events to be handed on once more (idgenctl outbox replay, dlq retry): whoever drains begins at the oldest then.';
INSERT INTO idgen.drain_lease (stream) VALUES ('segment'), ('lease'), ('audit');

CREATE TABLE idgen.lease_drained (
    cell_id uuid   PRIMARY KEY,
    seq     bigint NOT NULL CHECK (seq >= 0)
);
COMMENT ON TABLE idgen.lease_drained IS 'Outbox: how far the events of leases were handed on. They are removed by their age only up to here. Never dumped.';
COMMENT ON COLUMN idgen.lease_drained.cell_id IS 'The cell.';
COMMENT ON COLUMN idgen.lease_drained.seq IS 'The last event of its trail (idgen.lease_event.seq) that a broker has, and all before it.';

CREATE TABLE idgen.audit_event_dlq (
    source_id  uuid   NOT NULL,
    event_id   bigint NOT NULL,
    at         timestamptz NOT NULL,
    kind       text   NOT NULL,
    space_id   uuid   NOT NULL,
    tag        text COLLATE "C" NOT NULL,
    tag_seq    bigint NOT NULL,
    lo         bigint,
    hi         bigint,
    payload    jsonb  NOT NULL,
    reason     text   NOT NULL CHECK (reason IN ('too_large', 'refused')),
    sha256     bytea  NOT NULL CHECK (octet_length(sha256) = 32),
    attempts   integer NOT NULL DEFAULT 1 CHECK (attempts > 0),
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen  timestamptz NOT NULL DEFAULT clock_timestamp(),
    retried_at timestamptz,
    sent_at    timestamptz,
    PRIMARY KEY (source_id, event_id)
);
COMMENT ON TABLE idgen.audit_event_dlq IS 'Outbox: dead letters, the events that could not be sent as they are. A stub has gone in their place, so nothing is missing from a tag''s sequence. See idgenctl outbox dlq. Never dumped.';
COMMENT ON COLUMN idgen.audit_event_dlq.source_id IS 'As in idgen.audit_event, as the next eight:';
COMMENT ON COLUMN idgen.audit_event_dlq.event_id IS '... its number,';
COMMENT ON COLUMN idgen.audit_event_dlq.at IS '... when it was recorded,';
COMMENT ON COLUMN idgen.audit_event_dlq.kind IS '... its kind,';
COMMENT ON COLUMN idgen.audit_event_dlq.space_id IS '... the tag space,';
COMMENT ON COLUMN idgen.audit_event_dlq.tag IS '... the tag,';
COMMENT ON COLUMN idgen.audit_event_dlq.tag_seq IS '... its number within the tag,';
COMMENT ON COLUMN idgen.audit_event_dlq.lo IS '... first id of the range that it is about,';
COMMENT ON COLUMN idgen.audit_event_dlq.hi IS '... last id of it.';
COMMENT ON COLUMN idgen.audit_event_dlq.payload IS 'The whole payload, which the stub stands for.';
COMMENT ON COLUMN idgen.audit_event_dlq.reason IS 'too_large: longer than a message may be; refused: a broker refused this very message.';
COMMENT ON COLUMN idgen.audit_event_dlq.sha256 IS 'SHA-256 of the payload as text, as the stub has it.';
COMMENT ON COLUMN idgen.audit_event_dlq.attempts IS 'How often a stub was made of it.';
COMMENT ON COLUMN idgen.audit_event_dlq.first_seen IS 'When for the first time,';
COMMENT ON COLUMN idgen.audit_event_dlq.last_seen IS '... and for the last.';
COMMENT ON COLUMN idgen.audit_event_dlq.retried_at IS 'When somebody asked to send it anew (idgenctl outbox dlq retry), and no stub was made of it since; NULL: not.';
COMMENT ON COLUMN idgen.audit_event_dlq.sent_at IS 'When it was sent whole after all; NULL: not yet.';

CREATE TABLE idgen.audit_day (
    day       date PRIMARY KEY,
    fence_tx  xid8 NOT NULL,
    sealed_at timestamptz
);
COMMENT ON TABLE idgen.audit_day IS 'Outbox: the days of idgen.audit_event that are over. Never dumped.';
COMMENT ON COLUMN idgen.audit_day.day IS 'Day of UTC.';
COMMENT ON COLUMN idgen.audit_day.fence_tx IS 'The first transaction that had not begun when the day was found to be over: while one before it runs, the day may still get events.';
COMMENT ON COLUMN idgen.audit_day.sealed_at IS 'When it was found that nothing can come any more and everything was handed on; NULL: not yet.';

CREATE FUNCTION idgen.audit_leaves(OUT leaf name, OUT from_s bigint, OUT to_s bigint)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC'
AS $$
    SELECT c.relname, extract(epoch FROM b.bounds[1]::timestamptz)::bigint, extract(epoch FROM b.bounds[2]::timestamptz)::bigint
      FROM pg_inherits i
      JOIN pg_class c ON c.oid = i.inhrelid
     CROSS JOIN LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS b(bounds)
     WHERE i.inhparent = 'idgen.audit_event'::regclass AND b.bounds IS NOT NULL
     ORDER BY 2
$$;
COMMENT ON FUNCTION idgen.audit_leaves() IS 'The day tables of idgen.audit_event by their bounds (Unix seconds, the second is the first after the day), whatever they are called.';

CREATE FUNCTION idgen.drop_audit_day(of_day date, keep_days integer)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC'
AS $$
DECLARE
    opens constant timestamptz := of_day::timestamp AT TIME ZONE 'UTC';
    ends  constant timestamptz := (of_day + 1)::timestamp AT TIME ZONE 'UTC';
    leaf  regclass;
    why   text;
    kept  boolean;
BEGIN
    IF keep_days IS NULL OR keep_days < 7 OR of_day IS NULL THEN
        RAISE EXCEPTION 'a day of events is kept for 7 days at the least'
            USING ERRCODE = '22023', HINT = 'Set outbox.keep_days of idgend.';
    END IF;
    IF clock_timestamp() < ends + keep_days * interval '1 day' THEN
        RETURN 'young';
    END IF;
    PERFORM FROM idgen.audit_day d WHERE d.day = of_day AND d.sealed_at IS NOT NULL;
    IF NOT FOUND THEN
        RETURN 'open';
    END IF;
    SELECT l.leaf::regclass INTO leaf
      FROM (SELECT format('idgen.%I', s.leaf) AS leaf FROM idgen.audit_leaves() s
             WHERE s.from_s = extract(epoch FROM opens)::bigint AND s.to_s = extract(epoch FROM ends)::bigint) l;
    IF leaf IS NULL THEN
        RETURN NULL;
    END IF;
    -- Never waited for: whoever waits for such a lock makes everybody else wait behind it. From here on nobody writes to
    -- the day, so what is checked stays so; it can still be read.
    EXECUTE format('LOCK TABLE ONLY %s IN EXCLUSIVE MODE NOWAIT', leaf);
    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s WHERE NOT published)', leaf) INTO kept;
    IF kept THEN
        RETURN 'unpublished';
    END IF;
    why := idgen.archive_gate(of_day);
    IF why IS NOT NULL THEN
        RETURN concat('archive: ', why);
    END IF;
    -- Nobody may read now either, and of the parent neither, for the moment of the drop itself.
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT', leaf);
    LOCK TABLE ONLY idgen.audit_event IN ACCESS EXCLUSIVE MODE NOWAIT;
    EXECUTE format('DROP TABLE %s', leaf);
    DELETE FROM idgen.audit_day d WHERE d.day = of_day;
    RETURN NULL;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN 'locked';
END
$$;
COMMENT ON FUNCTION idgen.drop_audit_day(date, integer) IS
'Daemon: drop the table of a day of events, if all of this holds: it ended keep_days (7 or more) ago, it is sealed, everything of it was handed on, and the archive vouches for it row for row. NULL: it is gone. Else what keeps it: young, open, unpublished, archive (with the reason), or locked: somebody uses the tables at this moment, who is never made to wait. Error: 22023 keep_days.';

REVOKE ALL ON FUNCTION idgen.drop_audit_day(date, integer) FROM PUBLIC;

CREATE FUNCTION idgen.index_audit_day()
RETURNS date
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC' SET lock_timeout = '500ms'
AS $$
DECLARE
    found record;
BEGIN
    SELECT d.day, l.leaf INTO found
      FROM idgen.audit_day d
      JOIN idgen.audit_leaves() l ON l.from_s = extract(epoch FROM d.day)::bigint
     WHERE d.sealed_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                        WHERE i.indrelid = format('idgen.%I', l.leaf)::regclass AND c.relname = concat(l.leaf, '_ids'))
     ORDER BY d.day DESC LIMIT 1;
    IF found.day IS NULL THEN
        RETURN NULL;
    END IF;
    -- Nothing is written to it any more, so nobody is held up, and marks have never paid for this index.
    EXECUTE format('CREATE INDEX %I ON idgen.%I (space_id, tag, lo, hi) WHERE kind = %L', concat(found.leaf, '_ids'), found.leaf, 'segment.grant');
    RETURN found.day;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN NULL;
END
$$;
COMMENT ON FUNCTION idgen.index_audit_day() IS
'Daemon: give the newest sealed day of events that has none an index on the ids of its grants, for idgenctl whois. Returns the day; NULL: every one has it, or one is locked right now and has to wait for the next call.';
REVOKE ALL ON FUNCTION idgen.index_audit_day() FROM PUBLIC;
