-- What a day of events comes to, and whether it may leave the table. The check itself is idgend's and idgenctl's.
CREATE EXTENSION IF NOT EXISTS pg_idgen;
SET timezone = 'Europe/Berlin';
-- The numbers that the daemon has (core archive ids_are_mixed_as_splitmix64_does).
SELECT to_hex(idgen.mix_id(0)) AS zero, to_hex(idgen.mix_id(1)) AS one, to_hex(idgen.mix_id(-1)) AS highest, idgen.mix_id(NULL) IS NULL AS strict;
BEGIN;
-- A day of its own, whose leaf begins where UTC has it.
CREATE TABLE idgen.audit_event_20200229 PARTITION OF idgen.audit_event FOR VALUES FROM ('2020-02-29 00:00:00+00') TO ('2020-03-01 00:00:00+00');
INSERT INTO idgen.audit_event (event_id, source_id, at, kind, space_id, tag, tag_seq)
SELECT n, '00000000-0000-0000-0000-00000000000a', at, 'segment.create', gen_random_uuid(), 'a', n
  FROM unnest('{-9223372036854775808,-1,0,1,2,9223372036854775807}'::bigint[]) n, (SELECT '2020-02-29 00:00:00+00'::timestamptz AS at) d;
INSERT INTO idgen.audit_event (event_id, source_id, at, kind, space_id, tag, tag_seq)
VALUES (7, '00000000-0000-0000-0000-00000000000b', '2020-02-29 23:59:59.999999+00', 'segment.create', gen_random_uuid(), 'a', 7);
SELECT * FROM idgen.event_digest('2020-02-29') ORDER BY source_id;
-- XOR and sum, put together otherwise: 64 bits by two halves.
SELECT (sum((mixed >> 32) & 4294967295) * 4294967296 + sum(mixed & 4294967295)) % 18446744073709551616
       = (SELECT (d.digest_sum::numeric + 18446744073709551616) % 18446744073709551616 FROM idgen.event_digest('2020-02-29') d WHERE rows = 6) AS same_sum
  FROM idgen.audit_event, LATERAL (SELECT idgen.mix_id(idgen.mix_id(event_id) # (extract(epoch FROM at) * 1000000)::bigint) AS mixed) m
 WHERE source_id = '00000000-0000-0000-0000-00000000000a';
SELECT * FROM idgen.event_digest('2020-02-28');
SELECT idgen.event_digest(NULL) IS NULL AS strict;
-- The gate: not checked, then found wanting, then verified, then changed since.
SELECT idgen.archive_gate('2020-02-29');
INSERT INTO idgen.archive_day (source_id, day, state, rows, digest_xor, digest_sum, checked_by)
SELECT source_id, '2020-02-29', 'verified', rows, digest_xor, digest_sum, 'me' FROM idgen.event_digest('2020-02-29');
SELECT idgen.archive_gate('2020-02-29') IS NULL AS may_go;
-- A proof does not last for ever: what lies in a bucket for months may be damaged since.
UPDATE idgen.archive_day SET checked_at = '2020-03-01 23:30:00+00' WHERE source_id::text LIKE '%a';
SELECT idgen.archive_gate('2020-02-29');
UPDATE idgen.archive_day SET checked_at = clock_timestamp() - interval '6 days 23 hours';
SELECT idgen.archive_gate('2020-02-29') IS NULL AS may_go;
-- Another event under the number of the one that the archive has.
UPDATE idgen.audit_event SET at = at - interval '1 us' WHERE event_id = 7;
SELECT idgen.archive_gate('2020-02-29');
UPDATE idgen.audit_event SET at = at + interval '1 us' WHERE event_id = 7;
UPDATE idgen.archive_day SET state = 'mismatch', reason = 'file x is not what was written' WHERE source_id::text LIKE '%b';
SELECT idgen.archive_gate('2020-02-29');
UPDATE idgen.archive_day SET state = 'verified', reason = NULL;
INSERT INTO idgen.audit_event (event_id, source_id, at, kind, space_id, tag, tag_seq)
VALUES (8, '00000000-0000-0000-0000-00000000000b', '2020-02-29 12:00:00+00', 'segment.create', gen_random_uuid(), 'a', 8);
SELECT idgen.archive_gate('2020-02-29');
SELECT idgen.archive_gate('2020-02-28') IS NULL AS nothing_there;
-- A verdict says why, unless it is verified.
\set VERBOSITY sqlstate
SAVEPOINT s;
UPDATE idgen.archive_day SET reason = 'x';
ROLLBACK TO s;
UPDATE idgen.archive_day SET state = 'mismatch';
ROLLBACK TO s;
UPDATE idgen.archive_day SET state = 'fine';
ROLLBACK TO s;
\set VERBOSITY default
-- Not everybody's business; the daemon's role may write verdicts and not take them away.
CREATE ROLE idgen_archive_daemon;
SELECT idgen.grant_daemon('idgen_archive_daemon');
SET ROLE idgen_archive_daemon;
SELECT count(*) FROM idgen.event_digest('2020-02-29');
SELECT idgen.archive_gate('2020-02-29') IS NULL AS may_go;
INSERT INTO idgen.archive_day (source_id, day, state, rows, digest_xor, digest_sum, reason, checked_by)
VALUES ('00000000-0000-0000-0000-00000000000c', '2020-02-29', 'incomplete', 0, 0, 0, 'x', 'me');
\set VERBOSITY sqlstate
DELETE FROM idgen.archive_day;
\set VERBOSITY default
ROLLBACK;
