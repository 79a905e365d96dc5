-- The archive: what the daily check has found, and whether a day may leave this database.

CREATE TABLE idgen.archive_day (
    source_id  uuid   NOT NULL,
    day        date   NOT NULL,
    state      text   NOT NULL CHECK (state IN ('verified', 'mismatch', 'incomplete')),
    rows       bigint NOT NULL CHECK (rows >= 0),
    digest_xor bigint NOT NULL,
    digest_sum bigint NOT NULL,
    reason     text,
    head       text,
    checked_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    checked_by text   NOT NULL,
    PRIMARY KEY (source_id, day),
    CHECK ((state = 'verified') = (reason IS NULL))
);
COMMENT ON TABLE idgen.archive_day IS 'What the check of the archive has found for a UTC day of events, by their source. Written by idgend and idgenctl archive verify. Never dumped: a copy has to be checked anew.';
COMMENT ON COLUMN idgen.archive_day.source_id IS 'Which events: those that this database has recorded under this name (idgen.space).';
COMMENT ON COLUMN idgen.archive_day.day IS 'Of which UTC day.';
COMMENT ON COLUMN idgen.archive_day.state IS 'verified: every file is as it was written, and the archive has exactly the events of the table; mismatch: something was changed or lost; incomplete: something is not there yet.';
COMMENT ON COLUMN idgen.archive_day.rows IS 'Events that the table had of it when they were compared last: of a day that has left the table it stays as it was.';
COMMENT ON COLUMN idgen.archive_day.digest_xor IS 'XOR of what idgen.event_digest() makes of each of them.';
COMMENT ON COLUMN idgen.archive_day.digest_sum IS 'Sum of the same, modulo 2^64.';
COMMENT ON COLUMN idgen.archive_day.reason IS 'Why it is not verified; NULL: it is.';
COMMENT ON COLUMN idgen.archive_day.head IS 'Heads of the chains that were checked, CHAIN SEQ:SHA256 each.';
COMMENT ON COLUMN idgen.archive_day.checked_at IS 'When. A day leaves the table within 7 days of it, or is checked again.';
COMMENT ON COLUMN idgen.archive_day.checked_by IS 'By whom: the name of an idgend, or of an operator''s session.';

CREATE FUNCTION idgen.mix_id(id bigint)
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_mix_id';
COMMENT ON FUNCTION idgen.mix_id(bigint) IS 'SplitMix64 of a number: what digests of sets of ids are made of.';

CREATE FUNCTION idgen.event_digest(of_day date, OUT source_id uuid, OUT rows bigint, OUT digest_xor bigint, OUT digest_sum bigint)
RETURNS SETOF record
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT e.source_id, count(*), bit_xor(e.mixed),
           (CASE WHEN mod(sum(e.mixed), 18446744073709551616) < -9223372036854775808
                 THEN mod(sum(e.mixed), 18446744073709551616) + 18446744073709551616
                 WHEN mod(sum(e.mixed), 18446744073709551616) > 9223372036854775807
                 THEN mod(sum(e.mixed), 18446744073709551616) - 18446744073709551616
                 ELSE mod(sum(e.mixed), 18446744073709551616) END)::bigint
      FROM (SELECT a.source_id, idgen.mix_id(idgen.mix_id(a.event_id) # (extract(epoch FROM a.at) * 1000000)::bigint) AS mixed
              FROM idgen.audit_event a
             WHERE a.at >= of_day::timestamp AT TIME ZONE 'UTC'
               AND a.at < (of_day + 1)::timestamp AT TIME ZONE 'UTC') e
     GROUP BY e.source_id
$$;
COMMENT ON FUNCTION idgen.event_digest(date) IS 'What the events of a UTC day come to, read from idgen.audit_event: how many, and XOR and sum modulo 2^64 of idgen.mix_id(idgen.mix_id(event_id) # at in microseconds since 1970), by source.';
REVOKE ALL ON FUNCTION idgen.event_digest(date) FROM PUBLIC;

CREATE FUNCTION idgen.archive_gate(of_day date)
RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO'
AS $$
    SELECT string_agg(g.why, '; ' ORDER BY g.source_id)
      FROM (SELECT t.source_id,
                   CASE WHEN d.state IS NULL
                        THEN format('the archive was not checked for %s of %s (hint: idgenctl archive verify %s)', of_day, t.source_id, of_day)
                        WHEN d.state <> 'verified'
                        THEN format('the archive of %s is %s: %s', of_day, upper(d.state), d.reason)
                        WHEN d.checked_at < now() - interval '7 days'
                        THEN format('the archive of %s was checked last on %s, more than 7 days ago (hint: idgenctl archive verify %s)',
                                    of_day, (d.checked_at AT TIME ZONE 'UTC')::date, of_day)
                        WHEN (d.rows, d.digest_xor, d.digest_sum) IS DISTINCT FROM (t.rows, t.digest_xor, t.digest_sum)
                        THEN format('%s has %s events in the table now, and %s were verified in the archive, with another digest (hint: idgenctl archive verify %s)',
                                    of_day, t.rows, d.rows, of_day)
                   END AS why
              FROM idgen.event_digest(of_day) t
              LEFT JOIN idgen.archive_day d ON d.source_id = t.source_id AND d.day = of_day) g
$$;
COMMENT ON FUNCTION idgen.archive_gate(date) IS 'Why a UTC day must not leave idgen.audit_event, as far as the archive is concerned; NULL: the archive has all of it, proved event by event within the last 7 days.';
REVOKE ALL ON FUNCTION idgen.archive_gate(date) FROM PUBLIC;
