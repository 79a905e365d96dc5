-- From 0.1.0: what has another shape since. All else is in the parts of the install script, which follow.

-- Their functions give other columns; they are made anew below.
DROP VIEW idgen.health, idgen.slots, idgen.segments;
DROP FUNCTION
    idgen.claim_server(),
    idgen.install_lease(integer, uuid, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint, bigint),
    idgen.extend_lease(integer, uuid, text, integer, bigint, bigint, bigint, bigint, bigint, bigint),
    idgen.slot_states(),
    idgen.segment_buffers(),
    idgen.server_state(),
    idgen_create_segment(text, bigint, integer, integer, bigint),
    idgen_cursor_floor(bigint, interval);

ALTER TABLE idgen.cell
    ADD COLUMN epoch_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN epoch_known bigint NOT NULL DEFAULT 0,
    ADD COLUMN epoch_known_since timestamptz NOT NULL DEFAULT 'epoch',
    ADD COLUMN formats_known text[] NOT NULL DEFAULT '{}',
    ADD COLUMN shard_min_floor_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN sealed_at timestamptz,
    ADD COLUMN approvals_needed integer CHECK (approvals_needed IN (1, 2)),
    ADD COLUMN changes bigint NOT NULL DEFAULT 0,
    DROP COLUMN region;
ALTER TABLE idgen.lease SET (fillfactor = 40);
ALTER TABLE idgen.lease ADD COLUMN version bigint NOT NULL DEFAULT 0;

ALTER TABLE idgen.space
    ADD COLUMN stripe integer NOT NULL DEFAULT 0,
    ADD COLUMN stripes integer NOT NULL DEFAULT 1 CHECK (stripes BETWEEN 1 AND 64),
    ADD COLUMN stripe_size bigint CHECK (stripe_size > 0),
    ADD COLUMN above bigint NOT NULL DEFAULT 0 CHECK (above >= 0),
    ADD CHECK (stripe >= 0 AND stripe < stripes),
    ADD CHECK ((stripes = 1) = (stripe_size IS NULL));

-- No mark: 0.1.0 did not remember where it was, so each tag passes over its safety burn once.
ALTER TABLE idgen.segment
    ADD COLUMN rate_per_minute bigint NOT NULL DEFAULT 0 CHECK (rate_per_minute >= 0),
    ADD COLUMN rate_since_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN rate_since_id bigint NOT NULL DEFAULT 0,
    ADD COLUMN safety_burn bigint CHECK (safety_burn >= 0),
    ADD COLUMN mark uuid,
    ADD COLUMN leased boolean NOT NULL DEFAULT false;

-- What a script revokes or grants makes all rights that the object has then those that the extension was installed with,
-- and these are not dumped. So those of daemons go; idgen.grant_daemon() gives them again.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT DISTINCT p.oid::regprocedure AS function, a.grantee::regrole AS role
          FROM pg_catalog.pg_proc p CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) a
         WHERE p.oid IN ('idgen.server_clock()'::regprocedure, 'idgen.store_identity()'::regprocedure,
                         'idgen.fence_lease(uuid, text, integer, bigint, bigint)'::regprocedure,
                         'idgen.grant_daemon(name)'::regprocedure)
           AND a.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM %s', given.function, given.role);
    END LOOP;
END
$$;
