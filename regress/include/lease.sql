-- Included by tests that mint: pg_temp.lease(identity) opens a worker as the daemon does, for 480 s of ids and
-- 600 s of time, under a token that is newer than any this identity has had. Every test takes identities of its
-- own, so that tests can be run alone and in any order.
CREATE FUNCTION pg_temp.lease(worker integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.install_lease(1, c.boot_id, coalesce(c.cell_id, '11111111-2222-4333-8444-555555555555'), 'classic',
               'worker', worker, 100, coalesce(s.token_revision, 0) + 1,
               greatest(c.wall_ms, coalesce(s.last_ms, 0) + 1), c.wall_ms + 480000, c.boottime_ms + 600000,
               c.wall_ms, c.boottime_ms)
      FROM idgen.server_clock() c LEFT JOIN idgen.slots s ON s.kind = 'worker' AND s.identity = worker
$$;
