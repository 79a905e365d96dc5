-- Wait until a reload has given :setting the value :value in this session, and show it. A session takes a reload in
-- between two statements, so this is many of them, each of which does nothing once it is so.
\o /dev/null
SELECT format('SELECT pg_sleep(0.05) WHERE current_setting(%L) <> %L', :'setting', :'value') FROM generate_series(1, 100) \gexec
\o
SELECT :'setting' AS setting, current_setting(:'setting') AS value;
