-- The embedded lease store: what operators have ordered of holders (idgenctl leases revoke and force-release) and of servers
-- (idgenctl server drain and resume).
-- Never dumped.

CREATE TABLE idgen.lease_order (
    kind           text        NOT NULL CHECK (kind IN ('worker', 'shard')),
    identity       integer     NOT NULL CHECK (identity >= 0),
    token_epoch    bigint      NOT NULL,
    token_revision bigint      NOT NULL,
    ordered_at     timestamptz NOT NULL,
    ordered_by     text        NOT NULL,
    reason         text        NOT NULL,
    request_id     uuid,
    revision       bigint      NOT NULL,
    PRIMARY KEY (kind, identity)
);
COMMENT ON TABLE idgen.lease_order IS 'Embedded lease store: the last order of an operator against a holder of each identity. A lease whose token an order names is not renewed. Never dumped.';
COMMENT ON COLUMN idgen.lease_order.kind IS 'worker or shard.';
COMMENT ON COLUMN idgen.lease_order.identity IS 'The number that ids carry.';
COMMENT ON COLUMN idgen.lease_order.token_epoch IS 'The lease that ends by it: the epoch of its fencing token,';
COMMENT ON COLUMN idgen.lease_order.token_revision IS '... and the store revision of its grant. The next lease of the identity has another token.';
COMMENT ON COLUMN idgen.lease_order.ordered_at IS 'When, by the clock of this database.';
COMMENT ON COLUMN idgen.lease_order.ordered_by IS 'Who ordered it.';
COMMENT ON COLUMN idgen.lease_order.reason IS 'Why.';
COMMENT ON COLUMN idgen.lease_order.request_id IS 'The request that two people have approved, where the identity was taken from its holder by force. NULL: the holder was asked to give it back.';
COMMENT ON COLUMN idgen.lease_order.revision IS 'Store revision at which it was given.';

CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.lease_order
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.lease_order IS 'See idgen.store_stays().';

CREATE TABLE idgen.server_drain (
    server     text        PRIMARY KEY CHECK (server <> ''),
    drained    boolean     NOT NULL,
    said_at    timestamptz NOT NULL,
    said_by    text        NOT NULL,
    reason     text        NOT NULL,
    version    bigint      NOT NULL CHECK (version > 0)
);
COMMENT ON TABLE idgen.server_drain IS 'Embedded lease store: which servers are drained, by idgenctl server drain and resume. One that is takes no lease of workers and shards. Never dumped.';
COMMENT ON COLUMN idgen.server_drain.server IS 'Name of the server: name in the configuration of its idgend.';
COMMENT ON COLUMN idgen.server_drain.drained IS 'True: it takes no leases. False: it was resumed.';
COMMENT ON COLUMN idgen.server_drain.said_at IS 'Since when, by the clock of this database.';
COMMENT ON COLUMN idgen.server_drain.said_by IS 'Who has said so.';
COMMENT ON COLUMN idgen.server_drain.reason IS 'Why; may be empty.';
COMMENT ON COLUMN idgen.server_drain.version IS 'Counts what was said of this server.';

CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.server_drain
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.server_drain IS 'See idgen.store_stays().';
