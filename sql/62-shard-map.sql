-- Where each shard is, for clients of any server. Filled by the daemon; see docs/operations.md, "Shards".

-- Unlogged: whoever fills it fills it again after a crash, and a standby has no daemon.
CREATE UNLOGGED TABLE idgen.shard_place (
    shard          integer PRIMARY KEY,
    server         text    NOT NULL,
    address        text    NOT NULL,
    state          text    NOT NULL,
    goes_to        text    NOT NULL,
    token_epoch    bigint,
    token_revision bigint,
    since_ms       bigint,
    version        bigint  NOT NULL
);
COMMENT ON TABLE idgen.shard_place IS 'What idgen.shard_map shows: a row per shard that some server of the cell has or is to have. Written by the daemon. Unlogged, never dumped.';
COMMENT ON COLUMN idgen.shard_place.shard IS 'The shard.';
COMMENT ON COLUMN idgen.shard_place.server IS 'Name of the server.';
COMMENT ON COLUMN idgen.shard_place.address IS 'Where it is; empty: not said.';
COMMENT ON COLUMN idgen.shard_place.state IS 'serving, moving or nobody.';
COMMENT ON COLUMN idgen.shard_place.goes_to IS 'The server that is to have it.';
COMMENT ON COLUMN idgen.shard_place.token_epoch IS 'Of the lease; NULL: nobody has it.';
COMMENT ON COLUMN idgen.shard_place.token_revision IS 'Of the lease.';
COMMENT ON COLUMN idgen.shard_place.since_ms IS 'Since when, Unix ms.';
COMMENT ON COLUMN idgen.shard_place.version IS 'Of the order; 0: there is none.';

CREATE UNLOGGED TABLE idgen.shard_map_state (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    store_revision bigint  NOT NULL,
    known_at       timestamptz NOT NULL
)
WITH (fillfactor = 40);
COMMENT ON TABLE idgen.shard_map_state IS 'How far idgen.shard_place is true. Written by the daemon. Unlogged, never dumped.';
COMMENT ON COLUMN idgen.shard_map_state.one IS 'Always true: there is at most one row.';
COMMENT ON COLUMN idgen.shard_map_state.store_revision IS 'Revision of the lease store.';
COMMENT ON COLUMN idgen.shard_map_state.known_at IS 'All that there was then is known.';

CREATE VIEW idgen.shard_map AS
SELECT p.shard, p.server, nullif(p.address, '') AS address, p.state, p.goes_to,
       CASE WHEN p.token_epoch IS NOT NULL THEN pg_catalog.concat(p.token_epoch, '/', p.token_revision) END AS token,
       pg_catalog.to_timestamp(p.since_ms OPERATOR(pg_catalog./) 1000.0) AS since, p.version, s.store_revision,
       greatest(clock_timestamp() - s.known_at, '0'::interval) AS age
  FROM idgen.shard_place p CROSS JOIN idgen.shard_map_state s;
COMMENT ON VIEW idgen.shard_map IS 'Which server has which shard, and where it is: on every server of the cell whose daemon takes part, in the database that the daemon connects to. A row per shard that somebody has or is to have.';
COMMENT ON COLUMN idgen.shard_map.shard IS 'The shard, 0 to 8191.';
COMMENT ON COLUMN idgen.shard_map.server IS 'The server that mints from it (name in its idgend''s configuration); while nobody does, the one that is to.';
COMMENT ON COLUMN idgen.shard_map.address IS 'Where clients find that server: shards.address of its configuration; NULL: not said.';
COMMENT ON COLUMN idgen.shard_map.state IS 'serving: by the server that is to have it. moving: another one is to have it. nobody: it is being taken over, or its server is down.';
COMMENT ON COLUMN idgen.shard_map.goes_to IS 'The server that is to have it.';
COMMENT ON COLUMN idgen.shard_map.token IS 'Fencing token of the lease, EPOCH/REVISION: it rises with every move. NULL: nobody has it.';
COMMENT ON COLUMN idgen.shard_map.since IS 'Since when, by the clock of that server''s host.';
COMMENT ON COLUMN idgen.shard_map.version IS 'Counts the orders of idgenctl shards for it; 0: it is where the configurations say.';
COMMENT ON COLUMN idgen.shard_map.store_revision IS 'Revision of the lease store that this is true for.';
COMMENT ON COLUMN idgen.shard_map.age IS 'How old this may be. A few seconds at the most while the daemon reaches the lease store; it grows while it does not.';
GRANT SELECT ON idgen.shard_map TO PUBLIC;
