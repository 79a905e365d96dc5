-- The audits of this database: what each run has come to, and what was found. Written by idgend and idgenctl audit.

CREATE TABLE idgen.audit_run (
    run_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text   NOT NULL CHECK (kind IN ('incremental', 'full', 'archive', 'table')),
    began_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    ended_at    timestamptz,
    verdict     text   CHECK (verdict IN ('PASS', 'FINDING', 'INCONCLUSIVE')),
    reason      text,
    epoch       bigint,
    holder_name text   NOT NULL,
    read_from   text   CHECK (read_from IN ('replica', 'primary', 'archive')),
    system_id   bigint,
    timeline    integer,
    fence_lsn   pg_lsn,
    ranges      bigint NOT NULL DEFAULT 0 CHECK (ranges >= 0),
    tags        bigint NOT NULL DEFAULT 0 CHECK (tags >= 0),
    findings    bigint NOT NULL DEFAULT 0 CHECK (findings >= 0),
    progress    jsonb  NOT NULL DEFAULT '{}',
    CHECK ((ended_at IS NULL) = (verdict IS NULL)),
    CHECK (verdict IS DISTINCT FROM 'INCONCLUSIVE' OR reason IS NOT NULL)
);
COMMENT ON TABLE idgen.audit_run IS 'Audits: one row per run. PASS is said only of what was read whole. Never dumped.';
COMMENT ON SEQUENCE idgen.audit_run_run_id_seq IS 'run_id of idgen.audit_run.';
COMMENT ON COLUMN idgen.audit_run.run_id IS 'Number of the run.';
COMMENT ON COLUMN idgen.audit_run.kind IS 'incremental: what was granted since the last conclusive run; full: all grants that are there; archive: files of the archive; table: a column of a table of yours.';
COMMENT ON COLUMN idgen.audit_run.began_at IS 'When it began.';
COMMENT ON COLUMN idgen.audit_run.ended_at IS 'When it ended; NULL: it runs, or waits for whoever goes on with it.';
COMMENT ON COLUMN idgen.audit_run.verdict IS 'PASS: all was read, and nothing that is not closed was found; FINDING: see idgen.audit_finding; INCONCLUSIVE: not all of it could be read, so it says nothing; NULL: not ended.';
COMMENT ON COLUMN idgen.audit_run.reason IS 'Why it is INCONCLUSIVE; otherwise a remark, or NULL.';
COMMENT ON COLUMN idgen.audit_run.epoch IS 'Epoch of the lease audit (idgen.drain_lease) under which it was written last; NULL: without that lease.';
COMMENT ON COLUMN idgen.audit_run.holder_name IS 'Who runs it: the name of an idgend, or of an operator''s session.';
COMMENT ON COLUMN idgen.audit_run.read_from IS 'Where the grants were read: replica, primary or archive; NULL: it has not come to that.';
COMMENT ON COLUMN idgen.audit_run.system_id IS 'System identifier of the cluster it is about; NULL: not known.';
COMMENT ON COLUMN idgen.audit_run.timeline IS 'Timeline of its write-ahead log then; NULL: not known.';
COMMENT ON COLUMN idgen.audit_run.fence_lsn IS 'All that was written up to here was to be read; NULL: it needed no fence.';
COMMENT ON COLUMN idgen.audit_run.ranges IS 'Grants that were looked at.';
COMMENT ON COLUMN idgen.audit_run.tags IS 'Tags that they are of.';
COMMENT ON COLUMN idgen.audit_run.findings IS 'What was found, closed findings that were met again included.';
COMMENT ON COLUMN idgen.audit_run.progress IS 'Where to go on after a restart.';

CREATE TABLE idgen.audit_finding (
    finding_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind          text   NOT NULL CHECK (kind IN ('overlap', 'rewritten', 'missing', 'malformed', 'lease_overlap',
                                                  'not_in_database', 'not_in_archive', 'duplicate')),
    fingerprint   text   NOT NULL UNIQUE CHECK (fingerprint <> ''),
    space_id      uuid,
    tag           text COLLATE "C",
    lo            bigint,
    hi            bigint,
    first         jsonb,
    second        jsonb,
    detail        text   NOT NULL,
    found_by      text   NOT NULL CHECK (found_by IN ('probe', 'incremental', 'full', 'archive', 'table', 'reconcile')),
    run_id        bigint REFERENCES idgen.audit_run (run_id),
    found_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    last_seen_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    seen          integer NOT NULL DEFAULT 1 CHECK (seen >= 1),
    closed_at     timestamptz,
    closed_by     text,
    closed_reason text,
    settled       boolean NOT NULL DEFAULT false,
    CHECK ((lo IS NULL) = (hi IS NULL) AND lo <= hi),
    CHECK ((closed_at IS NULL) = (closed_by IS NULL) AND (closed_at IS NULL) = (closed_reason IS NULL)),
    CHECK (closed_at IS NOT NULL OR NOT settled)
);
COMMENT ON TABLE idgen.audit_finding IS 'Audits: what was found, by all of them, each thing once. Nobody removes findings; idgen.audit_close() closes them. Never dumped.';
COMMENT ON SEQUENCE idgen.audit_finding_finding_id_seq IS 'finding_id of idgen.audit_finding.';
COMMENT ON COLUMN idgen.audit_finding.finding_id IS 'Number of the finding.';
COMMENT ON COLUMN idgen.audit_finding.kind IS 'overlap: two grants have ids in common; rewritten: an event is not what it was; missing: numbers of a tag''s events that nobody has; malformed: an event that cannot be; lease_overlap: two leases of an identity at a time; not_in_database: the archive has an event that this database has lost; not_in_archive: the other way round; duplicate: a value twice in a table of yours.';
COMMENT ON COLUMN idgen.audit_finding.fingerprint IS 'What makes it this finding: the same thing found again is the same row.';
COMMENT ON COLUMN idgen.audit_finding.space_id IS 'Tag space; NULL: it is not about segments.';
COMMENT ON COLUMN idgen.audit_finding.tag IS 'The tag; of leases the identity (worker/7), of tables the column.';
COMMENT ON COLUMN idgen.audit_finding.lo IS 'First of the ids that both have; of leases the first Unix ms, of missing events the first number; NULL: there are none to name.';
COMMENT ON COLUMN idgen.audit_finding.hi IS 'Last of them.';
COMMENT ON COLUMN idgen.audit_finding.first IS 'The first issuer, as far as it is known: source, service, event_id, at, lo, hi, token, partition, offset.';
COMMENT ON COLUMN idgen.audit_finding.second IS 'The second; NULL: there is one only.';
COMMENT ON COLUMN idgen.audit_finding.detail IS 'What it is, in words.';
COMMENT ON COLUMN idgen.audit_finding.found_by IS 'Which audit found it first.';
COMMENT ON COLUMN idgen.audit_finding.run_id IS 'In which run; NULL: by the probe, which has no runs.';
COMMENT ON COLUMN idgen.audit_finding.found_at IS 'When for the first time,';
COMMENT ON COLUMN idgen.audit_finding.last_seen_at IS '... and for the last.';
COMMENT ON COLUMN idgen.audit_finding.seen IS 'How often.';
COMMENT ON COLUMN idgen.audit_finding.closed_at IS 'When somebody closed it; NULL: it is open.';
COMMENT ON COLUMN idgen.audit_finding.closed_by IS 'Who.';
COMMENT ON COLUMN idgen.audit_finding.closed_reason IS 'Why.';
COMMENT ON COLUMN idgen.audit_finding.settled IS 'The daemon has closed it, since what was missing had come: met again it is open again. What people have closed stays closed.';
CREATE INDEX audit_finding_open ON idgen.audit_finding (found_at) WHERE closed_at IS NULL;
COMMENT ON INDEX idgen.audit_finding_open IS 'Open findings are few, and asked for often.';

CREATE TABLE idgen.audit_frontier (
    run_id    bigint NOT NULL REFERENCES idgen.audit_run (run_id),
    source_id uuid   NOT NULL,
    space_id  uuid   NOT NULL,
    tag       text COLLATE "C" NOT NULL,
    first_seq bigint NOT NULL,
    first_at  timestamptz NOT NULL,
    last_seq  bigint NOT NULL,
    last_at   timestamptz NOT NULL,
    events    bigint NOT NULL CHECK (events >= 0),
    ranges    bigint NOT NULL CHECK (ranges >= 0),
    max_hi    bigint,
    suspect   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run_id, source_id, space_id, tag)
);
COMMENT ON TABLE idgen.audit_frontier IS 'Audits: how far a run has come in each stream of events. Those of the last conclusive run are where the next incremental one begins. Never dumped.';
COMMENT ON COLUMN idgen.audit_frontier.run_id IS 'Of which run.';
COMMENT ON COLUMN idgen.audit_frontier.source_id IS 'The database that has recorded the events,';
COMMENT ON COLUMN idgen.audit_frontier.space_id IS '... of which space,';
COMMENT ON COLUMN idgen.audit_frontier.tag IS '... and tag; empty: events of the whole space.';
COMMENT ON COLUMN idgen.audit_frontier.first_seq IS 'tag_seq of the first event that was there,';
COMMENT ON COLUMN idgen.audit_frontier.first_at IS '... and when it was recorded.';
COMMENT ON COLUMN idgen.audit_frontier.last_seq IS 'tag_seq of the last,';
COMMENT ON COLUMN idgen.audit_frontier.last_at IS '... and when it was recorded.';
COMMENT ON COLUMN idgen.audit_frontier.events IS 'How many there were, from the first on.';
COMMENT ON COLUMN idgen.audit_frontier.ranges IS 'How many of them were grants.';
COMMENT ON COLUMN idgen.audit_frontier.max_hi IS 'Highest id of these grants; NULL: there is none.';
COMMENT ON COLUMN idgen.audit_frontier.suspect IS 'Not everything came in its order, so the run has to look at all of the tag once more.';

CREATE FUNCTION idgen.record_finding(
    fingerprint text, kind text, space_id uuid, tag text, lo bigint, hi bigint, first jsonb, second jsonb,
    detail text, found_by text, run_id bigint,
    OUT finding_id bigint, OUT is_new boolean, OUT is_open boolean)
RETURNS record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO idgen.audit_finding AS f (fingerprint, kind, space_id, tag, lo, hi, first, second, detail, found_by, run_id)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    ON CONFLICT (fingerprint) DO UPDATE
       SET seen = f.seen + 1, last_seen_at = clock_timestamp(), settled = false,
           closed_at = CASE WHEN NOT f.settled THEN f.closed_at END, closed_by = CASE WHEN NOT f.settled THEN f.closed_by END,
           closed_reason = CASE WHEN NOT f.settled THEN f.closed_reason END
    RETURNING f.finding_id, f.seen = 1, f.closed_at IS NULL
$$;
COMMENT ON FUNCTION idgen.record_finding(text, text, uuid, text, bigint, bigint, jsonb, jsonb, text, text, bigint) IS
'Daemon: write a finding down, or that one which is there was met again (seen and last_seen_at rise, and what idgen.audit_settle() had closed is open again; nothing else changes). is_new: it was not there; is_open: nobody has closed it. Safe to repeat: the fingerprint makes it the same finding.';
REVOKE ALL ON FUNCTION idgen.record_finding(text, text, uuid, text, bigint, bigint, jsonb, jsonb, text, text, bigint) FROM PUBLIC;

CREATE FUNCTION idgen.audit_close(finding_id bigint, reason text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF btrim(coalesce(reason, '')) = '' THEN
        RAISE EXCEPTION 'a finding is closed with a reason'
            USING ERRCODE = '22023', HINT = 'Say what was done about it: it is what the next one who looks will read.';
    END IF;
    PERFORM FROM idgen.audit_finding f WHERE f.finding_id = audit_close.finding_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no finding %', coalesce(finding_id::text, 'NULL')
            USING ERRCODE = '22023', HINT = 'They are in idgen.audit_finding, and in idgenctl audit show.';
    END IF;
    UPDATE idgen.audit_finding f
       SET closed_at = clock_timestamp(), closed_by = session_user, closed_reason = reason
     WHERE f.finding_id = audit_close.finding_id AND f.closed_at IS NULL;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idgen.audit_close(bigint, text) IS
'Close a finding: it was dealt with. It stays where it is, with who closed it, when and why; met again it does not open, and does not make a run a FINDING. Returns false when it was closed already. For administrators. Errors: 22023 no reason, or no such finding.';
REVOKE ALL ON FUNCTION idgen.audit_close(bigint, text) FROM PUBLIC;

CREATE FUNCTION idgen.audit_settle(fingerprint text, reason text)
RETURNS boolean
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH settled AS (
        UPDATE idgen.audit_finding f
           SET closed_at = clock_timestamp(), closed_by = session_user, closed_reason = $2, settled = true
         WHERE f.fingerprint = $1 AND f.kind = 'missing' AND f.closed_at IS NULL
        RETURNING 1)
    SELECT EXISTS (SELECT FROM settled)
$$;
COMMENT ON FUNCTION idgen.audit_settle(text, text) IS
'Daemon: close a finding of events that were missing, since they have come; met again it is open again. Of no other kind: those are for people. Returns false where there is none that is open.';
REVOKE ALL ON FUNCTION idgen.audit_settle(text, text) FROM PUBLIC;

CREATE VIEW idgen.audit_status AS
SELECT k.kind, l.run_id AS last_run, l.began_at AS last_began_at, l.ended_at AS last_ended_at, l.verdict AS last_verdict,
       l.reason AS last_reason, c.run_id AS conclusive_run, c.ended_at AS conclusive_at, c.verdict AS conclusive_verdict,
       pg_catalog.clock_timestamp() - c.ended_at AS conclusive_age,
       (SELECT pg_catalog.count(*) FROM idgen.audit_finding f WHERE f.found_by = k.kind AND f.closed_at IS NULL) AS open_findings
  FROM pg_catalog.unnest('{incremental,full,archive,table,probe,reconcile}'::text[]) WITH ORDINALITY k (kind, place)
  LEFT JOIN LATERAL (SELECT * FROM idgen.audit_run r WHERE r.kind = k.kind ORDER BY r.run_id DESC LIMIT 1) l ON true
  LEFT JOIN LATERAL (SELECT * FROM idgen.audit_run r
                      WHERE r.kind = k.kind AND r.verdict IN ('PASS', 'FINDING') ORDER BY r.run_id DESC LIMIT 1) c ON true
 ORDER BY k.place;
COMMENT ON VIEW idgen.audit_status IS 'The audits of this database, a row for each kind. For members of pg_monitor.';
COMMENT ON COLUMN idgen.audit_status.kind IS 'As in idgen.audit_run, and two that find things without runs: probe (which reads the topic) and reconcile (what a failover has lost).';
COMMENT ON COLUMN idgen.audit_status.last_run IS 'The last run; NULL: there is none.';
COMMENT ON COLUMN idgen.audit_status.last_began_at IS 'When it began.';
COMMENT ON COLUMN idgen.audit_status.last_ended_at IS 'When it ended; NULL: it has not.';
COMMENT ON COLUMN idgen.audit_status.last_verdict IS 'What it came to.';
COMMENT ON COLUMN idgen.audit_status.last_reason IS 'Why it is INCONCLUSIVE, or a remark.';
COMMENT ON COLUMN idgen.audit_status.conclusive_run IS 'The last run that came to PASS or FINDING.';
COMMENT ON COLUMN idgen.audit_status.conclusive_at IS 'When that one ended.';
COMMENT ON COLUMN idgen.audit_status.conclusive_verdict IS 'Which of the two.';
COMMENT ON COLUMN idgen.audit_status.conclusive_age IS 'How long ago.';
COMMENT ON COLUMN idgen.audit_status.open_findings IS 'Findings that this kind of audit has made and nobody has closed.';
GRANT SELECT ON idgen.audit_run, idgen.audit_finding, idgen.audit_status TO pg_monitor;
