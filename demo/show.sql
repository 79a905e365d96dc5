\pset footer off
\echo A snowflake carries its time and the worker that made it:
(SELECT o.id, p.ts, p.worker, p.sequence FROM (SELECT id FROM orders ORDER BY id LIMIT 2) o, idgen_parse(o.id) p)
UNION ALL
(SELECT o.id, p.ts, p.worker, p.sequence FROM (SELECT id FROM orders ORDER BY id DESC LIMIT 2) o, idgen_parse(o.id) p)
ORDER BY id;

\echo A UUIDv7 carries its time:
SELECT id, idgen_timestamp(id) AS ts FROM events ORDER BY id LIMIT 3;

\echo Invoice numbers are dense:
SELECT min(number), max(number), count(*) FROM invoices;
