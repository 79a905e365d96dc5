-- The daemon's contract: install, extend, fence, and every refusal.
\pset null '(null)'
-- Without a daemon the right error, at once.
\set VERBOSITY terse
SELECT idgen_snowflake();
\set VERBOSITY default
SELECT state, preloaded, open_slots, daemon_seen_ms_ago, cell_id FROM idgen.health;

-- What the daemon says of the clock is shown as it was said, numbers only where it has some; too long texts are cut.
SELECT clock_state, clock_reason, clock_offset_us, clock_error_us FROM idgen.health;
SELECT idgen.note_clock('warn', 'off by 120 ms', -70, 120000);
SELECT clock_state, clock_reason, clock_offset_us, clock_error_us FROM idgen.health;
SELECT idgen.note_clock(repeat('s', 100), repeat('r', 159) || U&'\00E4' || 'x', NULL, NULL);
SELECT clock_state, length(clock_reason), clock_offset_us, clock_error_us FROM idgen.health;
SELECT idgen.note_clock('good', NULL, 0, 0);

SELECT boot_id, boottime_ms, wall_ms, in_recovery, contract_version FROM idgen.server_clock() \gset
SELECT :'in_recovery' AS in_recovery, :contract_version AS contract_version,
       abs(:wall_ms - extract(epoch FROM clock_timestamp()) * 1000) < 60000 AS wall_is_now;
\set cell '11111111-2222-4333-8444-555555555555'
CREATE FUNCTION pg_temp.install(
    contract integer DEFAULT 1, boot uuid DEFAULT NULL, cell uuid DEFAULT '11111111-2222-4333-8444-555555555555',
    format text DEFAULT 'classic', kind text DEFAULT 'worker', identity integer DEFAULT 7,
    epoch bigint DEFAULT 0, revision bigint DEFAULT 10,
    floor_in bigint DEFAULT 0, ceiling_in bigint DEFAULT 480000, deadline_in bigint DEFAULT 600000)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    c record; installed boolean; state text; message text;
BEGIN
    SELECT * INTO c FROM idgen.server_clock();
    installed := idgen.install_lease(contract, coalesce(boot, c.boot_id), cell, format, kind, identity, epoch, revision,
        c.wall_ms + floor_in, c.wall_ms + ceiling_in, c.boottime_ms + deadline_in, c.wall_ms, c.boottime_ms);
    RETURN CASE WHEN installed THEN 'installed' ELSE 'is installed already' END;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
    RETURN state || ' ' || message;
END $$;

-- Refused before anything is installed.
SELECT pg_temp.install(contract => 0), pg_temp.install(contract => 2);
SELECT pg_temp.install(boot => gen_random_uuid());
SELECT pg_temp.install(format => 'regional'), pg_temp.install(format => 'sharded'), pg_temp.install(format => 'nonsense');
SELECT pg_temp.install(kind => 'shard'), pg_temp.install(kind => ''), pg_temp.install(kind => 'shard', format => 'sharded', identity => 8192), pg_temp.install(identity => -1), pg_temp.install(identity => 1024);
SELECT pg_temp.install(epoch => -1), pg_temp.install(revision => -1);
SELECT pg_temp.install(floor_in => -3000000000000), pg_temp.install(floor_in => 10, ceiling_in => 9), pg_temp.install(ceiling_in => 86500000);
SELECT pg_temp.install(deadline_in => 0), pg_temp.install(deadline_in => -5000);
SELECT state, cell_id FROM idgen.health;

-- Installed; the same token again is a success that changes nothing; an older one is refused.
SELECT pg_temp.install(), pg_temp.install(), pg_temp.install(revision => 9);
SELECT pg_temp.install(cell => gen_random_uuid(), identity => 8, revision => 11);
SELECT state, open_slots, cell_id, worker_format, deadline_in_ms BETWEEN 590000 AND 600000 AS deadline FROM idgen.health;
SELECT kind, identity, state, generation, token_epoch, token_revision, floor <= clock_timestamp() AS floor,
       ceiling_lead_ms BETWEEN 470000 AND 480000 AS lead, deadline_in_ms BETWEEN 590000 AND 600000 AS deadline
  FROM idgen.slots;

-- It mints.
SELECT (p).worker, (p).ts BETWEEN clock_timestamp() - interval '10 s' AND clock_timestamp() + interval '1 s' AS now
  FROM (SELECT idgen_parse(idgen_snowflake()) AS p) s;

-- Extend raises, never lowers, and only the token that is open.
CREATE FUNCTION pg_temp.extend(revision bigint, ceiling_in bigint, deadline_in bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.extend_lease(1, c.boot_id, 'classic', 'worker', 7, 0, revision, c.wall_ms + ceiling_in, c.boottime_ms + deadline_in, NULL, NULL)
      FROM idgen.server_clock() c
$$;
SELECT pg_temp.extend(10, 900000, 1200000), pg_temp.extend(10, 1, 1), pg_temp.extend(9, 900000, 1200000), pg_temp.extend(11, 900000, 1200000);
SELECT ceiling_lead_ms BETWEEN 890000 AND 900000 AS lead, deadline_in_ms BETWEEN 1190000 AND 1200000 AS deadline FROM idgen.slots;
SELECT idgen.extend_lease(2, :'boot_id', 'classic', 'worker', 7, 0, 10, 1, 1, NULL, NULL);
SELECT idgen.extend_lease(1, gen_random_uuid(), 'classic', 'worker', 7, 0, 10, 1, 1, NULL, NULL);
SELECT idgen.extend_lease(1, NULL, 'classic', 'worker', 7, 0, 10, 1, 1, NULL, NULL);

-- Fence: exact, repeatable, final.
SELECT (idgen_parse(idgen_snowflake())).ts AS last \gset
SELECT idgen.fence_lease(:'boot_id', 'worker', 7, 0, 9) AS other_token;
SELECT idgen.fence_lease(:'boot_id', 'worker', 7, 0, 10) AS high_water \gset
SELECT to_timestamp(:high_water / 1000.0) = :'last'::timestamptz AS exact,
       idgen.fence_lease(:'boot_id', 'worker', 7, 0, 10) = :high_water AS again;
SELECT pg_temp.extend(10, 2000000, 2000000), pg_temp.install();
SELECT state FROM idgen.slots;
-- A daemon was seen: the call waits, then says so.
SET idgen.lease_wait_ms = 50;
\set VERBOSITY terse
SELECT idgen_snowflake();
\set VERBOSITY default
RESET idgen.lease_wait_ms;

-- A newer token opens above what was minted; one at or below it is refused.
SELECT pg_temp.install(revision => 20, floor_in => -60000) AS below;
SELECT pg_temp.install(revision => 20, floor_in => 1) AS above;
SELECT idgen_snowflake() > 0 AS mints;
-- A second token over a live one of the same identity ends the first.
SELECT pg_temp.install(revision => 30, floor_in => 100) AS over_a_live_one, pg_temp.extend(20, 1000000, 1000000) AS first_one;
-- An epoch counts more than a revision.
SELECT pg_temp.install(epoch => 1, revision => 5, floor_in => 200) AS next_epoch, pg_temp.install(revision => 40, floor_in => 300) AS older_epoch;

-- Used up: the window, then the deadline.
SELECT idgen.fence_lease(:'boot_id', 'worker', 7, 1, 5) IS NOT NULL AS fenced;
SET idgen.lease_wait_ms = 0;
SELECT pg_temp.install(epoch => 2, floor_in => 900, ceiling_in => 900, deadline_in => 600000);
SELECT count(idgen_snowflake()) FROM generate_series(1, 5000);
SELECT idgen.fence_lease(:'boot_id', 'worker', 7, 2, 10) IS NOT NULL AS fenced;
SELECT pg_temp.install(epoch => 3, floor_in => 1500, deadline_in => 300);
SELECT pg_sleep(0.35);
\set VERBOSITY terse
SELECT idgen_snowflake();
\set VERBOSITY default
SELECT identity, state FROM idgen.slots;
SELECT pg_temp.extend(10, 1, 600000) AS wrong_epoch;
RESET idgen.lease_wait_ms;

-- Nothing of this is for everybody.
CREATE ROLE idgen_nobody;
SET ROLE idgen_nobody;
SELECT * FROM idgen.server_clock();
SELECT idgen.fence_lease(gen_random_uuid(), 'worker', 7, 0, 10);
SELECT idgen.grant_daemon('idgen_nobody');
SELECT count(*) FROM idgen.cell;
SELECT count(*) FROM idgen.lease;
SELECT count(*) >= 0 AS visible FROM idgen.slots;
RESET ROLE;
SELECT idgen.grant_daemon('idgen_nobody');
SET ROLE idgen_nobody;
SELECT contract_version FROM idgen.server_clock();
SELECT count(*) FROM idgen.lease;
SELECT (SELECT timeline FROM idgen.store_identity()) AS timeline;
DELETE FROM idgen.lease;
RESET ROLE;
DROP OWNED BY idgen_nobody;
DROP ROLE idgen_nobody;
\set VERBOSITY terse
SELECT idgen.grant_daemon('no such role');
\set VERBOSITY default

-- A deadline that the word cannot hold is its end, never an earlier one.
SELECT pg_temp.install(epoch => 40, identity => 9);
SELECT idgen.extend_lease(1, boot_id, 'classic', 'worker', 9, 40, 10, wall_ms, 2199023255553, NULL, NULL) FROM idgen.server_clock();
SELECT state, deadline_in_ms > 600000 AS never_lowered FROM idgen.slots WHERE identity = 9;
-- A ceiling that is years ahead is cut.
SELECT idgen.extend_lease(1, boot_id, 'classic', 'worker', 9, 40, 10, 9223372036854775807, boottime_ms, NULL, NULL) FROM idgen.server_clock();
SELECT ceiling_lead_ms BETWEEN 86390000 AND 86400000 AS a_day FROM idgen.slots WHERE identity = 9;
SELECT idgen.fence_lease(boot_id, 'worker', 9, 40, 10) IS NOT NULL AS fenced FROM idgen.server_clock();
-- The data directory remembers its cell, whatever shared memory has forgotten (restarts: e2e).
SELECT trim(pg_read_file('pg_idgen_cell'), E'\n') AS cell;
-- One daemon per server; the claim ends with its session.
SELECT idgen.claim_server('worker') AS mine, idgen.claim_server('worker') AS still_mine;
\c -
DO $$ BEGIN LOOP EXIT WHEN idgen.claim_server('worker'); PERFORM pg_sleep(0.01); END LOOP; END $$;

-- Anchors: how far the lease store has come. Whole, of this server's cell, and never back.
CREATE FUNCTION pg_temp.anchor(cell uuid, store text, epoch bigint, nonce integer, revision bigint)
RETURNS text LANGUAGE sql AS $$
    SELECT body || ' ' || left(encode(sha256(body::bytea), 'hex'), 16)
      FROM concat_ws(' ', 'anchor2', replace(cell::text, '-', ''), store, epoch, lpad(nonce::text, 32, '0'), 0, revision, '- -', 'classic') AS body
$$;
CREATE FUNCTION pg_temp.store(store text, epoch bigint, nonce integer, revision bigint)
RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.store_anchor(boot_id, 'worker', pg_temp.anchor(cell_id, store, epoch, nonce, revision)) FROM idgen.server_clock()
$$;
SELECT pg_temp.store('etcd/1', 3, 1, 10) AS stored, pg_temp.store('etcd/1', 3, 1, 10) AS again, pg_temp.store('etcd/1', 3, 1, 11) AS later;
SELECT a.kind, a.anchor = pg_temp.anchor(c.cell_id, 'etcd/1', 3, 1, 11) AS as_stored FROM idgen.anchors() a, idgen.server_clock() c WHERE a.kind = 'worker';
SELECT pg_temp.store('etcd/1', 3, 1, 10);
SELECT pg_temp.store('etcd/1', 3, 2, 12);
SELECT pg_temp.store('etcd/2', 3, 1, 12);
SELECT pg_temp.store('etcd/1', 2, 1, 12);
SELECT pg_temp.store('etcd/2', 4, 2, 1) AS next_epoch;
SELECT idgen.store_anchor(boot_id, 'worker', left(pg_temp.anchor(cell_id, 'etcd/2', 4, 2, 2), -1)) FROM idgen.server_clock();
SELECT idgen.store_anchor(boot_id, 'worker', pg_temp.anchor('00000000-0000-4000-8000-00000000dead', 'etcd/2', 4, 2, 2)) FROM idgen.server_clock();
SELECT idgen.store_anchor('00000000-0000-4000-8000-00000000dead', 'worker', pg_temp.anchor(cell_id, 'etcd/2', 4, 2, 2)) FROM idgen.server_clock();

-- Rows of the embedded store stay, also for its owner.
DELETE FROM idgen.lease;
DELETE FROM idgen.cell;
TRUNCATE idgen.lease;
TRUNCATE idgen.cell;
