-- count(DISTINCT key) equals count(*) in every table, and the total is what was loaded.
-- Indexes are left out on purpose: the proof reads the rows, not the primary keys' own promise.
\pset footer off
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SET enable_bitmapscan = off;
CREATE TEMP VIEW proof AS
    SELECT 'orders' AS "table", count(*) AS rows, count(DISTINCT id) AS distinct_keys FROM orders
    UNION ALL SELECT 'events', count(*), count(DISTINCT id) FROM events
    UNION ALL SELECT 'invoices', count(*), count(DISTINCT number) FROM invoices
    UNION ALL SELECT 'total', sum(rows), sum(distinct_keys)
                FROM (SELECT count(*) AS rows, count(DISTINCT id) AS distinct_keys FROM orders
                      UNION ALL SELECT count(*), count(DISTINCT id) FROM events
                      UNION ALL SELECT count(*), count(DISTINCT number) FROM invoices) t;
SELECT *, CASE WHEN rows = distinct_keys THEN 'all distinct' ELSE 'DUPLICATES' END AS verdict FROM proof;

SELECT bool_and(rows = distinct_keys) AND max(rows) = :expected AS proven FROM proof \gset
\if :proven
\else
    DO $$ BEGIN RAISE 'not proven: a duplicate key, or not the number of rows that was loaded'; END $$;
\endif
