-- The embedded lease store: who is to have which shard, and who has it. As idgen.lease: read and written by daemons and
-- idgenctl only, and never dumped.

CREATE TABLE idgen.shard_assignment (
    shard       integer     PRIMARY KEY CHECK (shard BETWEEN 0 AND 8191),
    server      text        NOT NULL CHECK (server <> ''),
    assigned_at timestamptz NOT NULL,
    assigned_by text        NOT NULL,
    reason      text        NOT NULL DEFAULT '',
    version     bigint      NOT NULL CHECK (version > 0)
);
COMMENT ON TABLE idgen.shard_assignment IS 'Embedded lease store: which server is to have a shard, by idgenctl shards move and drain. A row wins over the lists in the configurations; a shard without one is had by the server whose list names it. Never dumped.';
COMMENT ON COLUMN idgen.shard_assignment.shard IS 'The shard, 0 to 8191.';
COMMENT ON COLUMN idgen.shard_assignment.server IS 'Name of the server: name in the configuration of its idgend.';
COMMENT ON COLUMN idgen.shard_assignment.assigned_at IS 'When it was ordered.';
COMMENT ON COLUMN idgen.shard_assignment.assigned_by IS 'Who ordered it.';
COMMENT ON COLUMN idgen.shard_assignment.reason IS 'Why; may be empty.';
COMMENT ON COLUMN idgen.shard_assignment.version IS 'Counts the orders for this shard.';

CREATE UNLOGGED TABLE idgen.shard_server (
    instance        uuid        PRIMARY KEY,
    server          text        NOT NULL,
    boot_id         uuid,
    address         text        NOT NULL,
    room            integer     NOT NULL,
    lasts_ms        bigint      NOT NULL,
    shown_ms        bigint      NOT NULL,
    shards          integer[]   NOT NULL,
    token_epochs    bigint[]    NOT NULL,
    token_revisions bigint[]    NOT NULL,
    since_ms        bigint[]    NOT NULL,
    expires_at      timestamptz NOT NULL
)
WITH (fillfactor = 40);
COMMENT ON TABLE idgen.shard_server IS 'Embedded lease store: the servers that can have shards, and which each has, as their daemons show it. Nobody mints by it. Unlogged: whoever is there shows itself again within a period. Never dumped.';
COMMENT ON COLUMN idgen.shard_server.instance IS 'Instance id of the daemon.';
COMMENT ON COLUMN idgen.shard_server.server IS 'Name of the server, as in idgen.shard_assignment.';
COMMENT ON COLUMN idgen.shard_server.boot_id IS 'The shared memory of the server; NULL: its daemon has not seen it yet.';
COMMENT ON COLUMN idgen.shard_server.address IS 'Where clients find it; empty: its configuration does not say.';
COMMENT ON COLUMN idgen.shard_server.room IS 'How many shards it can have.';
COMMENT ON COLUMN idgen.shard_server.lasts_ms IS 'How long a shard stays taken after the server has vanished, in ms: TTL and window of its leases.';
COMMENT ON COLUMN idgen.shard_server.shown_ms IS 'When it was shown, Unix ms by its own clock.';
COMMENT ON COLUMN idgen.shard_server.shards IS 'The shards that it mints from,';
COMMENT ON COLUMN idgen.shard_server.token_epochs IS '... the epochs of their tokens,';
COMMENT ON COLUMN idgen.shard_server.token_revisions IS '... the revisions of their tokens,';
COMMENT ON COLUMN idgen.shard_server.since_ms IS '... and since when, Unix ms by its own clock.';
COMMENT ON COLUMN idgen.shard_server.expires_at IS 'Not shown after this moment, by the clock of this database.';
