-- Medians, and the numbers to hold of the design. CPU time decides; wall time stands beside it. The peers' ratios
-- were measured once by the same method on PostgreSQL 15.20: pgEdge snowflake 2.6.0, pg_idkit 0.4.0, pg_uuidv7 1.6,
-- pgx_ulid 0.2.2.
\pset footer off
\echo
\echo Per call, the empty loop subtracted (ns)
SELECT m.name,
       round((m.wall_ns - e.wall_ns)::numeric, 1) AS wall_ns,
       round((m.cpu_ns - e.cpu_ns)::numeric, 1) AS cpu_ns,
       round(((m.cpu_ns - e.cpu_ns) / (n.cpu_ns - e.cpu_ns))::numeric, 2) AS "× nextval()"
  FROM bench_median m, bench_median e, bench_median n
 WHERE e.name = 'empty loop' AND n.name = 'nextval()'
   AND m.name NOT LIKE 'insert %' AND m.name NOT LIKE 'spread%' AND m.name NOT LIKE 'copy %' AND m.name NOT LIKE 'counted%'
   AND m.name NOT IN ('empty loop', 'idgen_snowflake(), 1 slot')
 ORDER BY m.cpu_ns;

\echo The same where the argument changes from call to call: 1,000 tags, 1,000 sequences
SELECT replace(m.name, 'spread: ', '') AS name,
       round((m.wall_ns - e.wall_ns)::numeric, 1) AS wall_ns,
       round((m.cpu_ns - e.cpu_ns)::numeric, 1) AS cpu_ns
  FROM bench_median m, bench_median e
 WHERE e.name = 'spread: empty loop' AND m.name LIKE 'spread: %' AND m.name <> e.name
 ORDER BY m.cpu_ns;

\if :all
\echo COPY into a table with that DEFAULT primary key, per row (ns)
SELECT m.name, round(m.wall_ns::numeric) AS wall_ns, round(m.cpu_ns::numeric) AS cpu_ns,
       round((m.cpu_ns / n.cpu_ns)::numeric, 2) AS "× nextval()", p.ratios AS peers
  FROM bench_median m
  JOIN bench_median n ON n.name = 'copy bigserial'
  LEFT JOIN (VALUES ('copy snowflake', 'snowflake 1.36'), ('copy uuidv7', 'pg_idkit 1.86, pg_uuidv7 2.76'))
       p (name, ratios) ON p.name = m.name
 WHERE m.name LIKE 'copy %' ORDER BY m.cpu_ns;
\endif

CREATE VIEW bench_net AS
    SELECT m.name, m.cpu_ns - e.cpu_ns AS ns
      FROM bench_median m JOIN bench_median e
        ON e.name = CASE WHEN m.name LIKE 'spread: %' THEN 'spread: empty loop' ELSE 'empty loop' END;

-- sense: '>=' or '<='.
CREATE VIEW bench_verdict AS
    WITH cost AS (SELECT name, ns FROM bench_net),
    ratio AS (
        SELECT 10 AS nth, 'idgen_snowflake(), 1 slot: ids per ms / 4,096' AS what,
               1e6 / wall_ns / 4096 AS measured, '>=' AS sense, 0.95 AS hold
          FROM bench_median WHERE name = 'idgen_snowflake(), 1 slot'
        UNION ALL
        SELECT h.nth, replace(h.name || ' / ' || h.base, 'spread: ', ''), a.ns / b.ns, '<=', h.hold
          FROM (VALUES (20, 'idgen_snowflake(), 8 slots', 'nextval()', 0.5),
                       (30, 'idgen_uuidv7()', 'nextval()', 0.35),
                       (40, 'idgen_uuidv7()', 'gen_random_uuid()', 0.07),
                       (50, 'idgen_segment()', 'nextval()', 0.6),
                       (121, 'spread: idgen_segment() of 1000 tags', 'spread: nextval() of 1000 sequences', 0.6),
                       (122, 'spread: idgen_segment() of 1000 tags', 'spread: idgen_segment() of one tag', 6.0)) h (nth, name, base, hold)
          JOIN cost a ON a.name = h.name JOIN cost b ON b.name = h.base
        UNION ALL
        SELECT 60, 'two backends, 8 slots / one backend: ' || two.name, two.tps * 2 / one.tps, '>=', 1.5
          FROM bench_scaling one JOIN bench_scaling two USING (name)
         WHERE one.clients = 1 AND two.clients = 2 AND name = 'idgen_snowflake()'
        UNION ALL
        SELECT 65, 'idgen_snowflake() counted / not counted', a.ns / b.ns, '<=', 1.03
          FROM cost a JOIN cost b ON a.name = 'counted: on' AND b.name = 'counted: off'
        UNION ALL
        SELECT h.nth, h.name || ' rows/s / insert bigserial', b.wall_ns / a.wall_ns, '>=', h.hold
          FROM (VALUES (70, 'insert snowflake', 1.0), (80, 'insert segment', 1.0), (90, 'insert uuidv7', 0.85))
                 h (nth, name, hold)
          JOIN bench_median a ON a.name = h.name JOIN bench_median b ON b.name = 'insert bigserial'
        UNION ALL
        SELECT 95, 'index of uuidv7 / index of random v4', avg(bytes) FILTER (WHERE name = 'insert uuidv7')
               / avg(bytes) FILTER (WHERE name = 'insert uuidv4'), '<=', 0.8
          FROM bench_index
        UNION ALL
        SELECT nth, what, measured, sense, hold FROM bench_row
    )
    SELECT nth, what, measured::numeric, sense, hold,
           CASE WHEN sense = '>=' AND measured >= hold OR sense = '<=' AND measured <= hold
                THEN 'holds' ELSE 'does not hold' END AS verdict
      FROM ratio WHERE measured IS NOT NULL;

CREATE TEMP TABLE peer (nth int, ratios text);
INSERT INTO peer
    SELECT nth, beside FROM bench_row
    UNION ALL
    SELECT 60, 'nextval() here ' || round((two.tps * 2 / one.tps)::numeric, 2) || '; snowflake 0.87, gen_monotonic_ulid() 0.79'
      FROM bench_scaling one JOIN bench_scaling two USING (name)
     WHERE one.clients = 1 AND two.clients = 2 AND name = 'nextval()'
    UNION ALL
    VALUES (20, 'snowflake 1.06'), (30, 'pg_idkit 2.87, pg_uuidv7 5.39'), (40, 'pg_idkit 0.54, pg_uuidv7 1.01'),
           (50, 'nextval() CACHE 1000 0.38'), (70, 'snowflake 1.07'), (80, 'nextval() CACHE 1000 1.14'),
           (90, 'pg_idkit 0.79, pg_uuidv7 0.55'), (95, 'pg_idkit 0.79, pg_uuidv7 1.01');

\echo Ratios of this run against the numbers to hold
SELECT what, round(measured, 3) AS measured, sense || ' ' || hold AS hold, verdict, ratios AS "peers, or beside"
  FROM bench_verdict LEFT JOIN peer USING (nth) ORDER BY nth;
SELECT count(*) FILTER (WHERE verdict = 'holds') || ' of ' || count(*) || ' numbers hold on this machine' AS summary
  FROM bench_verdict;
