-- Runs of the audits and what they have found. Who runs them is idgend and idgenctl.
CREATE EXTENSION IF NOT EXISTS pg_idgen;
\pset null NULL
BEGIN;
SELECT kind, last_run, conclusive_run, open_findings FROM idgen.audit_status;
INSERT INTO idgen.audit_run (kind, holder_name) VALUES ('full', 'me');
SELECT last_run IS NOT NULL AS has_run, last_verdict, conclusive_run, conclusive_age FROM idgen.audit_status WHERE kind = 'full';
UPDATE idgen.audit_run SET ended_at = clock_timestamp(), verdict = 'INCONCLUSIVE', reason = 'the replica is behind';
SELECT last_verdict, last_reason, conclusive_run FROM idgen.audit_status WHERE kind = 'full';
-- A run that says nothing says why; one that has ended says what it came to.
\set VERBOSITY sqlstate
SAVEPOINT s;
UPDATE idgen.audit_run SET reason = NULL;
ROLLBACK TO s;
UPDATE idgen.audit_run SET ended_at = NULL;
ROLLBACK TO s;
UPDATE idgen.audit_run SET verdict = 'FINE';
ROLLBACK TO s;
INSERT INTO idgen.audit_run (kind, holder_name) VALUES ('sometimes', 'me');
ROLLBACK TO s;
\set VERBOSITY default
INSERT INTO idgen.audit_run (kind, holder_name, ended_at, verdict) VALUES ('full', 'me', clock_timestamp(), 'FINDING');
SELECT last_verdict, conclusive_run = last_run AS same, conclusive_age >= '0' AS has_age FROM idgen.audit_status WHERE kind = 'full';
-- The same thing found again is the same finding, and keeps who found it first.
CREATE TEMP TABLE run AS SELECT max(run_id) AS run_id FROM idgen.audit_run;
SELECT finding_id AS finding, is_new, is_open
  FROM run, idgen.record_finding('f1', 'overlap', '00000000-0000-0000-0000-00000000000a', 'orders', 5, 10,
                                 '{"source": "a", "event_id": 1}', '{"source": "a", "event_id": 2}', 'two grants', 'full', run.run_id) \gset
SELECT :'is_new' AS is_new, :'is_open' AS is_open;
SELECT finding_id = :finding AS same, is_new, is_open FROM idgen.record_finding('f1', 'overlap', NULL, NULL, NULL, NULL, NULL, NULL, 'other words', 'probe', NULL);
SELECT kind, tag, lo, hi, first ->> 'event_id' AS first, second ->> 'event_id' AS second, detail, found_by, seen, last_seen_at > found_at AS later FROM idgen.audit_finding;
SELECT kind, open_findings FROM idgen.audit_status WHERE open_findings > 0;
-- Closed with a reason, once; it stays closed when it is met again.
\set VERBOSITY terse
SAVEPOINT s;
SELECT idgen.audit_close(:finding, ' ');
ROLLBACK TO s;
SELECT idgen.audit_close(:finding, NULL);
ROLLBACK TO s;
SELECT idgen.audit_close(0, 'x');
ROLLBACK TO s;
SELECT idgen.audit_close(NULL, 'x');
ROLLBACK TO s;
\set VERBOSITY default
SELECT idgen.audit_close(:finding, 'ids 5 to 10 were renamed') AS closed, idgen.audit_close(:finding, 'again') AS again;
SELECT closed_by = session_user AS by_me, closed_reason FROM idgen.audit_finding;
SELECT is_new, is_open FROM idgen.record_finding('f1', 'overlap', NULL, NULL, NULL, NULL, NULL, NULL, 'x', 'probe', NULL);
SELECT count(*) FROM idgen.audit_status WHERE open_findings > 0;
-- Who may what: the daemon's role runs audits and closes nothing, an administrator closes, pg_monitor looks, others do not.
-- What was missing has come. Of an overlap nobody says that but people.
SELECT kind, is_new FROM (VALUES ('overlap'), ('missing')) k (kind),
       idgen.record_finding('settle ' || kind, kind, NULL, NULL, 2, 3, NULL, NULL, 'x', 'probe', NULL) ORDER BY kind;
SELECT kind, idgen.audit_settle('settle ' || kind, 'they came late') AS settled, idgen.audit_settle('settle ' || kind, 'again') AS again
  FROM (VALUES ('overlap'), ('missing')) k (kind) ORDER BY kind;
SELECT kind, closed_by = session_user AS closed, closed_reason FROM idgen.audit_finding WHERE fingerprint LIKE 'settle %' ORDER BY kind;
-- Missing again, it is open again. What people have closed stays closed.
SELECT is_new, is_open FROM idgen.record_finding('settle missing', 'missing', NULL, NULL, 2, 3, NULL, NULL, 'x', 'probe', NULL);
SELECT seen, closed_at, closed_by, closed_reason, settled FROM idgen.audit_finding WHERE fingerprint = 'settle missing';
SELECT idgen.audit_close(finding_id, 'they are in the archive') FROM idgen.audit_finding WHERE fingerprint = 'settle missing';
SELECT is_new, is_open FROM idgen.record_finding('settle missing', 'missing', NULL, NULL, 2, 3, NULL, NULL, 'x', 'probe', NULL);
CREATE ROLE regress_auditor;
CREATE ROLE regress_admin;
CREATE ROLE regress_looks IN ROLE pg_monitor;
CREATE ROLE regress_nobody;
SELECT idgen.grant_daemon('regress_auditor'), idgen.grant_admin('regress_admin');
SELECT r.role, f.may, has_function_privilege(r.role, f.function, 'EXECUTE')
  FROM unnest('{regress_auditor,regress_admin,regress_looks,regress_nobody}'::name[]) WITH ORDINALITY r (role, n),
       (VALUES ('record', 'idgen.record_finding(text, text, uuid, text, bigint, bigint, jsonb, jsonb, text, text, bigint)'::regprocedure),
               ('close', 'idgen.audit_close(bigint, text)'::regprocedure),
               ('settle', 'idgen.audit_settle(text, text)'::regprocedure)) f (may, function)
 ORDER BY r.n, f.may;
SELECT r.role, t.relation, concat_ws(' ', CASE WHEN has_table_privilege(r.role, t.relation, 'SELECT') THEN 'select' END,
       CASE WHEN has_table_privilege(r.role, t.relation, 'INSERT') THEN 'insert' END,
       CASE WHEN has_table_privilege(r.role, t.relation, 'UPDATE') THEN 'update' END,
       CASE WHEN has_table_privilege(r.role, t.relation, 'DELETE') THEN 'delete' END) AS may
  FROM unnest('{regress_auditor,regress_admin,regress_looks,regress_nobody}'::name[]) WITH ORDINALITY r (role, n),
       unnest('{idgen.audit_run,idgen.audit_finding,idgen.audit_frontier,idgen.audit_status}'::text[]) t (relation)
 ORDER BY r.n, t.relation;
-- The third lease beside those of the outbox.
SELECT stream, epoch, holder FROM idgen.drain_lease WHERE stream = 'audit';
ROLLBACK;
